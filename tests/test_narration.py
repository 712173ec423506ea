"""What a run's events are on a terminal or in a file, without the app."""

from __future__ import annotations

import sys

import pytest

from hetero_tui import events
from hetero_tui.events import ClusterState, HostState
from hetero_tui.fold import apply
from hetero_tui.narration import Narrator, Output, StepPrinter, waiting_for
from hetero_tui.state import initial
from remote_agent import protocol
from remote_agent.states import RunState
from tests.specs import run_step


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


def test_what_comes_again_and_again_is_said_once_in_two_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator(Output(plain=True))
    state = apply(initial("lab", ()), events.RunChanged(run="text-1", job="text", state=RunState.RUNNING))
    for number in (1, 2, 119, 122):
        slow = protocol.WorkerSlow(seq=number, time=float(number), worker="a/cpu", host="a", step=number, factor=0.5)
        state = apply(state, events.RunProgressed(run="text-1", event=slow))
        narrator(state)
    assert capsys.readouterr().err.count("a slowed to") == 2


def step(number: int, time: float) -> protocol.Step:
    return run_step(number, time=time, loss=0.5, samples=8)


def test_a_step_says_how_long_the_rest_takes_by_the_pace_of_the_recent_ones(capsys: pytest.CaptureFixture[str]) -> None:
    printer = StepPrinter(Output(plain=True))
    printer(
        protocol.RunStarted(
            seq=1, time=0.0, run="r", job="j", host="a", iterations=103, batch_size=8, parameters=1, config={}
        )
    )
    for number in range(1, 4):
        printer(step(number, 2.0 * number))
    lines = capsys.readouterr().out.splitlines()
    assert "left" not in lines[0], "one step has no pace"
    assert lines[2].split("samples/s")[1].strip() == "3 min 20 s left"


@pytest.mark.parametrize("is_past", [True, False])
def test_the_first_step_after_a_resume_has_the_speed_of_now_and_what_was_before_is_not_printed_again(
    is_past: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = StepPrinter(Output(plain=True))
    begun = protocol.RunStarted(seq=1, time=0.0, run="r", job="j", host="a", iterations=100, batch_size=8, parameters=1)
    for event in (begun, *(step(number, 2.0 * number) for number in range(1, 4))):
        printer(event, is_past=is_past)
    assert bool(capsys.readouterr().out) is not is_past
    printer(protocol.RunResumed(seq=5, time=9000.0, step=3, host="a", checkpoint="/c"))
    printer(step(4, 9010.0))
    resumed, first = capsys.readouterr().out.splitlines()
    assert resumed == "resumed after step 3"
    assert first.split()[:6] == ["step", "4/100", "loss", "0.5000", "8", "samples/s"]
    end = {"steps": 4, "samples": 320, "final_loss": 0.00016, "samples_per_second": 8.0, "checkpoint": "/c"}
    printer(protocol.RunFinished(seq=6, time=9011.0, **end))
    finished, _ = capsys.readouterr().out.splitlines()
    assert finished == "finished: 4 steps, 320 samples, loss 0.00016, 8 samples/s since step 3"


def test_what_is_waited_for_is_said_until_there_is_a_step() -> None:
    state = initial("lab", (("mercer", "a"), ("nas", "b")))
    assert waiting_for(state) == ""
    state = apply(state, events.ClusterChanged(time=1.0, state=ClusterState.STARTING, head="nas"))
    state = apply(state, events.HostChanged(time=1.0, host="nas", state=HostState.UP))
    assert "1 of 2 hosts are up" in waiting_for(state)
    for away in (HostState.UNREACHABLE, HostState.REFUSED, HostState.UNFIT, HostState.FAILED):
        without = apply(state, events.HostChanged(time=1.0, host="mercer", state=away))
        assert "1 of 1 hosts are up" in waiting_for(without), "nothing is waited for from a host that can't join"
    state = apply(state, events.ClusterChanged(time=1.0, state=ClusterState.UP, head="nas"))
    state = apply(state, events.RunChanged(time=1.0, run="r", job="j", state=RunState.STARTING))
    assert waiting_for(state) == "r: its coordinator starts, no step yet"
    state = apply(state, events.RunProgressed(run="r", event=step(1, 1.0)))
    assert waiting_for(state) == ""
    back = protocol.RunResumed(seq=2, time=2.0, step=1, host="nas", checkpoint="/c")
    again = apply(state, events.RunProgressed(run="r", event=back))
    assert waiting_for(again) == "r: its workers start, no new step yet"
    state = apply(state, events.ClusterChanged(time=1.0, state=ClusterState.STOPPING))
    assert waiting_for(state) == "lab is being taken down"


@pytest.mark.parametrize(
    ("output", "term", "rings"),
    [
        (Output(), "xterm", True),
        (Output(plain=True), "xterm", False),
        (Output(as_json=True), "xterm", False),
        (Output(), "dumb", False),
    ],
)
def test_only_a_terminal_that_knows_escape_codes_gets_any(
    output: Output, term: str, rings: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", term)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    output.ring("text-1 finished")
    output.complain("something")
    output.table(["A", "B"], [["1", "2"]])
    said = capsys.readouterr()
    assert ("\x1b]9;text-1 finished\x07\x07" in said.err) is rings
    if output.plain or term == "dumb":
        assert "\x1b" not in said.err + said.out
