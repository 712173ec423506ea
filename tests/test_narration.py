"""What a run's events are on a terminal or in a file, without the app."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from hetero_tui import events, narration
from hetero_tui.cli import application
from hetero_tui.errors import UsageError
from hetero_tui.events import ClusterState, HostState
from hetero_tui.fold import apply
from hetero_tui.narration import Narrator, Output, StepPrinter, saying, waiting_for
from hetero_tui.state import initial
from remote_agent import protocol
from remote_agent.states import RunState


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


def test_what_comes_again_and_again_is_said_once_in_two_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator(Output(plain=True))
    state = apply(initial("lab", ()), events.RunChanged(run="text-1", job="text", state=RunState.RUNNING))
    for number in (1, 2, 119, 122):
        slow = protocol.WorkerSlow(seq=number, time=float(number), worker="a/cpu", host="a", step=number, factor=0.5)
        state = apply(state, events.RunProgressed(run="text-1", event=slow))
        narrator(state)
    assert capsys.readouterr().err.count("a slowed to") == 2


def test_while_the_history_of_a_run_is_read_it_is_not_said_to_have_made_no_step() -> None:
    state = apply(initial("lab", ()), events.RunChanged(run="text-1", job="text", state=RunState.RUNNING))
    assert waiting_for(state) == "text-1: running, no step yet"
    state = apply(state, events.RunBehind(run="text-1", seq=700, step=650))
    assert waiting_for(state) == "text-1: its history is read"


@pytest.mark.parametrize("on_terminal", [True, False])
def test_an_evaluation_and_the_end_are_printed_once_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, on_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
    output = Output(plain=True)
    narrator, alone, printer = Narrator(output), Narrator(Output(plain=True), alone=True), StepPrinter(output)
    evaluated = protocol.Evaluated(
        seq=1, time=1.0, step=9, epoch=1.0, metrics={"val_loss": 0.5}, samples=7, seconds=0.1
    )
    state = apply(initial("lab", ()), events.RunChanged(run="text-1", job="text", state=RunState.RUNNING))
    narrator(state)
    alone(state)
    capsys.readouterr()
    for event in (evaluated, finished()):
        state = apply(state, events.RunProgressed(run="text-1", event=event))
        narrator(state)
        printer(event)
    found = capsys.readouterr()
    assert found.out.startswith("step 9 evaluated on 7 samples: val loss 0.5000\nfinished: 9 steps")
    assert ("evaluated on" in found.err, "finished after" in found.err) == (not on_terminal, not on_terminal)
    alone(state)
    assert "finished after" in capsys.readouterr().err, "a replay has no printed data beside it"


TELLS = """
from hetero_tui import events
from hetero_tui.fold import apply
from hetero_tui.narration import Narrator, Output, StepPrinter
from hetero_tui.state import initial
from remote_agent import protocol
from remote_agent.states import RunState
event = protocol.Evaluated(seq=1, time=1.0, step=9, epoch=1.0, metrics={"val_loss": 0.5}, samples=7, seconds=0.1)
state = apply(initial("lab", ()), events.RunChanged(run="text-1", job="text", state=RunState.RUNNING))
narrator, printer = Narrator(Output()), StepPrinter(Output())
narrator(apply(state, events.RunProgressed(run="text-1", event=event)))
printer(event)
"""


@pytest.mark.parametrize(("errors", "count"), [(subprocess.STDOUT, 1), (subprocess.PIPE, 2)])
def test_an_evaluation_is_printed_once_where_errors_go_to_the_same_file(errors: int, count: int) -> None:
    done = subprocess.run([sys.executable, "-c", TELLS], stdout=subprocess.PIPE, stderr=errors, text=True, check=True)
    assert (done.stdout + (done.stderr or "")).count("step 9 evaluated on 7 samples") == count


def test_in_a_pipe_a_long_cell_cuts_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = "a reason " * 50
    rows = [["mercer", "TITAN X, 12 GB", "fit"], ["nas-with-a-long-name", "CPU 4 cores", verdict]]
    Output().table(["HOST", "DEVICES", "VERDICT"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "HOST                  DEVICES         VERDICT"
    assert lines[1] == "mercer                TITAN X, 12 GB  fit"
    assert lines[2] == f"nas-with-a-long-name  CPU 4 cores     {verdict.strip()}"


def step(number: int, time: float) -> protocol.Step:
    return protocol.Step(
        seq=number, time=time, step=number, loss=0.5, samples=8, seconds=1.0, bytes_pushed=0, bytes_pulled=0
    )


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


def test_steps_are_printed_on_after_the_clock_of_the_head_was_set_back(capsys: pytest.CaptureFixture[str]) -> None:
    printer = StepPrinter(Output(plain=True))
    for number in range(1, 4):
        printer(step(number, 300.0 + 2 * number))
    for number in range(4, 7):
        printer(step(number, 2.0 * number))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1].partition("/")[0] for line in lines] == ["1", "2", "3", "4", "5", "6"]
    assert [line.split("loss")[1].split()[1] for line in lines] == ["8", "4", "4", "8", "4", "4"]
    assert "-" not in "".join(lines)


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


def test_a_host_that_joins_a_cluster_is_waited_for_unless_a_run_goes_on() -> None:
    state = initial("lab", (("mercer", "a"), ("nas", "b")))
    for host in ("mercer", "nas"):
        state = apply(state, events.HostChanged(time=1.0, host=host, state=HostState.UP))
    state = apply(state, events.ClusterChanged(time=1.0, state=ClusterState.UP, head="nas"))
    state = apply(state, events.HostChanged(time=2.0, host="mercer", state=HostState.STARTING))
    assert waiting_for(state).startswith("Ray starts: 1 of 2 hosts are up")
    state = apply(state, events.RunProgressed(run="r", event=step(1, 1.0)))
    assert waiting_for(state) == ""


async def test_what_is_waited_for_is_said_again_with_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(narration, "WORD_EVERY", 0.02)
    said = ""
    async with asyncio.timeout(20), saying(Output(plain=True), lambda: "Ray starts"):
        while said.count("\n") < 2:
            await asyncio.sleep(0.01)
            said += capsys.readouterr().err
    assert re.match(r"(Ray starts, for \d+ s\n){2}", said)


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


def test_the_demo_in_a_pipe_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Waiting:
        """A session whose cluster is up once it was said that this is waited for."""

        state = apply(initial("demo", (("fast", "a"),)), events.ClusterChanged(time=0.0, state=ClusterState.STARTING))

        def subscribe(self, _: object) -> None:
            pass

        async def up(self) -> None:
            async with asyncio.timeout(10):
                while not any("Ray starts: 0 of 1 hosts are up" in text for text in said):
                    await asyncio.sleep(0)
            raise UsageError("that will do")

    @asynccontextmanager
    async def fleet(**_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(session=Waiting())

    monkeypatch.setattr(Output, "say", lambda _, text, style="": said.append(text))
    monkeypatch.setattr(narration, "WORD_EVERY", 0.0)
    monkeypatch.setattr("hetero_tui.demo.fleet.demo_fleet", fleet)
    CliRunner().invoke(application, ["demo", "--plain"])
    assert any("that will do" in text for text in said)
