"""How a script's run is coming along: one line on a terminal, lines now and then elsewhere, no escape codes."""

from __future__ import annotations

import dataclasses
import io

from remote_agent import protocol
from remote_agent.training.coordinator.reporting.progress import PLAIN_S, ProgressLine, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def started() -> protocol.RunStarted:
    return protocol.RunStarted(seq=1, time=0.0, run="r", job="j", host="a", iterations=1000, batch_size=2, parameters=5)


def step(number: int, time: float) -> protocol.Step:
    return protocol.Step(
        seq=number, time=time, step=number, loss=0.5, samples=64, seconds=0.1, bytes_pushed=0, bytes_pulled=0
    )


def finished() -> protocol.RunFinished:
    return protocol.RunFinished(
        seq=9,
        time=9.0,
        steps=3,
        samples=9,
        final_loss=0.25,
        samples_per_second=1.0,
        checkpoint="there",
        evaluation={"val_loss": 0.3},
        reason="early stopping: enough",
    )


def test_a_terminal_gets_one_line_that_renews_itself_without_escape_codes() -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    line.on_event(started())
    for number in range(1, 101):
        line.on_step(step(number, number / 10))
    line.on_evaluate(
        protocol.Evaluated(seq=5, time=9.0, step=100, epoch=1.0, metrics={"val_loss": 0.3}, samples=9, seconds=1.0)
    )
    line.on_step(step(101, 10.15))
    line.on_end(finished())
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "step 101/1,000  loss 0.5  val_loss 0.3" in text
    assert "640 samples/s" in text
    assert "1:30 left" in text
    assert text.count("\n") == 1
    assert text.endswith("finished after 3 steps (early stopping: enough): loss 0.25, val_loss 0.3; there\n")


def test_a_jobs_own_metric_called_loss_is_not_taken_for_the_training_loss() -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    line.on_event(started())
    line.on_evaluate(
        protocol.Evaluated(seq=5, time=9.0, step=1, epoch=None, metrics={"loss": 0.3}, samples=9, seconds=1.0)
    )
    line.on_step(step(1, 0.1))
    line.on_end(dataclasses.replace(finished(), evaluation={"loss": 0.3}))
    assert "loss 0.5  val_loss 0.3" in stream.getvalue()
    assert "loss 0.25, val_loss 0.3;" in stream.getvalue()


def test_what_the_plan_says_is_shown_once_a_line_each() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    for reasons in (
        ("a/cpu: 2 of 2 samples", "b: lent memory"),
        ("b: lent memory", "b: away"),
    ):
        plan = protocol.PlanMade(
            seq=2, time=0.5, strategy="sync", shares=(), predicted_step_s=0.1, iterations=9, reasons=reasons
        )
        line.on_event(plan)
    assert stream.getvalue() == "a/cpu: 2 of 2 samples\nb: lent memory\nb: away\n"


def test_what_is_no_terminal_gets_a_plain_line_now_and_then() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.on_event(started())
    for number in range(1, 1001):
        line.on_step(step(number, number / 10))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 100 / PLAIN_S + 1
    assert lines[-1].startswith("step 1,000/1,000")
    assert "\r" not in stream.getvalue()


def test_what_happens_meanwhile_stays_above_the_line() -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    line.on_event(started())
    line.on_step(step(1, 0.1))
    line.on_event(
        protocol.WorkerLost(seq=3, time=1.0, worker="b/cpu", host="b", device="cpu", step=1, cause="its process ended")
    )
    shown = stream.getvalue().split("\n")[0]
    assert shown.endswith("\rb lost at step 1: its process ended")
    line.on_event(
        protocol.WorkerLost(seq=4, time=1.0, worker="c/cpu", host="c", device="cpu", step=2, cause=protocol.DRAINED)
    )
    assert "c left the run before step 2, as asked (drained)" in stream.getvalue()
    assert "c lost" not in stream.getvalue()


def test_durations_are_written_as_people_do() -> None:
    assert [duration(seconds) for seconds in (7.4, 723, 10800)] == ["0:07", "12:03", "3:00:00"]
