"""What a run's events are on a terminal or in a file, without the app."""

from __future__ import annotations

import pytest

from hetero_tui.narration import Output, StepPrinter
from remote_agent import protocol


def finished() -> protocol.RunFinished:
    return protocol.RunFinished(
        seq=2, time=1.0, steps=9, samples=18, final_loss=0.5, samples_per_second=3.0, checkpoint="/tmp/there"
    )


def test_the_users_lines_that_led_to_a_failure_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    failed = protocol.RunFailed(
        seq=2, time=1.0, step=3, host="nas", cause="no", detail="a.py:3 in loss\n    1/0\x1b[2J"
    )
    StepPrinter(Output(False, True))(failed)
    assert capsys.readouterr().out == "  a.py:3 in loss\n      1/0\n"


def test_a_checkpoint_is_named_unless_it_goes_with_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    StepPrinter(Output(False, True))(finished())
    assert "checkpoint: /tmp/there\n" in capsys.readouterr().out
    StepPrinter(Output(False, True), demo=True)(finished())
    said = capsys.readouterr().out
    assert "/tmp" not in said
    assert "the demo's checkpoints are removed with it\n" in said


def test_in_a_pipe_a_long_cell_cuts_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = "a reason " * 50
    rows = [["mercer", "TITAN X, 12 GB", "fit"], ["nas-with-a-long-name", "CPU 4 cores", verdict]]
    Output().table(["HOST", "DEVICES", "VERDICT"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "HOST                  DEVICES         VERDICT"
    assert lines[1] == "mercer                TITAN X, 12 GB  fit"
    assert lines[2] == f"nas-with-a-long-name  CPU 4 cores     {verdict.strip()}"
