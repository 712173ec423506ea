"""How runs stand, read from their files: quickly, however long they were, and also where the end of a file is torn."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from hetero_tui import reports
from remote_agent import protocol, runs
from remote_agent.planning.step_times import MEASURED_STEPS
from remote_agent.protocol import (
    Event,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    RunSummary,
    Step,
)
from tests.specs import run_step, write_run

HERE = protocol.DeviceSpec(host="a", device="cpu", name="test")


def step(seq: int, number: int, loss: float | None = 0.5) -> Step:
    return run_step(number, seq=seq, time=1.0 * seq, loss=loss, samples=4, seconds=0.1)


def resumed(seq: int, after: int) -> RunResumed:
    return RunResumed(seq=seq, time=1.0, step=after, host="a", checkpoint="")


def finished(seq: int, *, stopped: bool = False) -> RunFinished:
    return RunFinished(
        seq=seq,
        time=1.0,
        steps=9,
        samples=36,
        final_loss=0.25,
        samples_per_second=1.0,
        checkpoint="",
        stopped=stopped,
    )


def failed(seq: int, at: int) -> RunFailed:
    return RunFailed(seq=seq, time=1.0, step=at, host="a", cause="the loss is nan")


def saved(seq: int) -> Event:
    return protocol.CheckpointSaved(seq=seq, time=1.0, step=7, path="p", host="a")


def summary(folder: Path, *events: Event, rest: str = "") -> RunSummary:
    place = folder / "runs/r"
    write_run(place, "digits", devices=(HERE,))
    (place / "events.jsonl").write_text("".join(protocol.encode(event) + "\n" for event in events) + rest)
    (found,) = runs.list_runs(folder).runs
    return found


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((), ("lost", 0, None, 0)),
        ((step(1, 1), step(2, 2)), ("lost", 2, 0.5, 2)),
        ((step(1, 1), step(2, 2), saved(3)), ("lost", 2, 0.5, 3)),
        ((step(1, 8), step(2, 9), resumed(3, 5)), ("lost", 5, 0.5, 3)),
        ((step(1, 9), resumed(2, 7), resumed(3, 5)), ("lost", 5, 0.5, 3)),
        ((step(1, 8), resumed(2, 5), step(3, 6, None)), ("lost", 6, None, 3)),
        ((step(1, 9), saved(2), finished(3)), ("finished", 9, 0.25, 3)),
        ((step(1, 9), finished(2, stopped=True)), ("stopped", 9, 0.25, 2)),
        ((step(1, 8), failed(2, 9)), ("failed", 8, 0.5, 2)),
        ((step(1, 8), failed(2, 0)), ("failed", 8, 0.5, 2)),
        ((failed(1, 0),), ("failed", 0, None, 1)),
        ((step(1, 8), failed(2, 9), resumed(3, 8)), ("lost", 8, 0.5, 3)),
        ((step(1, 8), failed(2, 9), resumed(3, 8), step(4, 9)), ("lost", 9, 0.5, 4)),
    ],
)
def test_a_run_stands_where_its_last_events_say(
    tmp_path: Path, events: tuple[Event, ...], expected: tuple[str, int, float | None, int]
) -> None:
    found = summary(tmp_path, *events)
    assert (found.state, found.step, found.loss, found.seq) == expected


def test_a_line_that_is_still_being_written_and_one_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    found = summary(tmp_path, step(1, 1), rest='not json\n{"seq":3,"time":1.0,"kind":"st')
    assert (found.step, found.seq) == (1, 1)


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((step(1, 8),), "stopped"),
        ((step(1, 8), failed(2, 9)), "failed"),
        ((step(1, 8), finished(2)), "finished"),
    ],
)
def test_a_lost_run_that_is_ended_is_stopped_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: tuple[Event, ...], state: str
) -> None:
    summary(tmp_path, *events)
    monkeypatch.setattr(sys, "argv", ["runs", "--folder", str(tmp_path), "--end", "r"])
    assert runs.main() == 0
    assert summary(tmp_path, *events).state == state
    assert summary(tmp_path, *events, resumed(5, 8)).state == "lost"


def test_a_run_that_is_not_there_is_ended_without_an_error(tmp_path: Path) -> None:
    runs.end(tmp_path, "r")
    assert not list(tmp_path.iterdir())


def test_a_run_says_what_its_last_steps_took_and_what_is_predicted(tmp_path: Path) -> None:
    steps = [dataclasses.replace(step(n, n), seconds=9.0 if n < 20 else 2.0, predicted_s=1.5) for n in range(1, 40)]
    found = summary(tmp_path, *steps)
    assert (found.step_s, found.predicted_s) == (2.0, 1.5)
    assert reports.run_rows((("a", found),))[0][5] == "2 s (predicted 1.5 s)"
    document = reports.runs_document((("a", found),))["runs"][0]
    assert (document["step_s"], document["predicted_s"]) == (2.0, 1.5)
    assert summary(tmp_path, failed(1, 0)).step_s is None


def test_of_a_long_run_only_as_many_events_are_decoded_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 25 runs of 1,600 steps each, every command that looks for a run took 22 s; it takes 0.07 s so."""
    decoded = 0
    decode = protocol.decode_event

    def counting(line: str) -> Event | None:
        nonlocal decoded
        decoded += 1
        return decode(line)

    monkeypatch.setattr(protocol, "decode_event", counting)
    first = RunStarted(seq=1, time=5.0, run="r", job="digits", host="a", parameters=3, iterations=9, batch_size=4)
    found = summary(tmp_path, first, *(step(seq, seq - 1) for seq in range(2, 12_000)), saved(12_000))
    assert (found.step, found.seq, found.started) == (11_998, 12_000, 5.0)
    assert decoded == 2 + MEASURED_STEPS + runs.CURVE_POINTS, "the first, the last, the last steps, those of the curve"
    assert len(found.curve) == runs.CURVE_POINTS
