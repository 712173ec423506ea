"""Callbacks: told of everything, in a thread of their own; what they do wrong costs them, and not the run."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from remote_agent import protocol
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.reporting import callbacks, loggers
from remote_agent.training.coordinator.reporting.callbacks import Callback, Callbacks
from remote_agent.training.errors import JobError


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "events.jsonl")


def start(journal: Journal) -> None:
    journal.write(protocol.RunStarted, run="r", job="j", host="a", iterations=3, batch_size=2, parameters=5)


def step(journal: Journal, number: int) -> None:
    journal.write(protocol.Step, step=number, loss=0.5, samples=2, seconds=0.1, bytes_pushed=0, bytes_pulled=0)


def evaluated(journal: Journal, number: int, **metrics: float | None) -> None:
    journal.write(protocol.Evaluated, step=number, epoch=1.0, metrics=metrics, samples=9, seconds=0.2)


def finish(journal: Journal) -> None:
    journal.write(protocol.RunFinished, steps=3, samples=6, final_loss=0.5, samples_per_second=1.0, checkpoint="there")


class Told(Callback):
    """Notes what it is told of."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def on_start(self, event: Any, folder: Path) -> None:
        self.calls.append(("start", folder))

    def on_step(self, event: protocol.Step) -> None:
        self.calls.append(("step", event.step))

    def on_evaluate(self, event: protocol.Evaluated) -> None:
        self.calls.append(("evaluate", event.metrics))

    def on_checkpoint(self, event: protocol.CheckpointSaved) -> None:
        self.calls.append(("checkpoint", event.step))

    def on_end(self, event: Any) -> None:
        self.calls.append(("end", event.kind))


def test_a_callback_is_told_of_everything_in_order(journal: Journal, tmp_path: Path) -> None:
    told = Told()
    with Callbacks([told], journal, tmp_path, "a"):
        start(journal)
        step(journal, 1)
        evaluated(journal, 1, val_loss=0.4)
        journal.write(protocol.CheckpointSaved, step=1, path="p", host="a")
        journal.write(protocol.RunResumed, step=0, host="a", checkpoint="")  # a shard was restored: it is no new start
        step(journal, 1)
        finish(journal)
    assert told.calls == [
        ("start", tmp_path),
        ("step", 1),
        ("evaluate", {"val_loss": 0.4}),
        ("checkpoint", 1),
        ("step", 1),
        ("end", "run_finished"),
    ]


def test_one_that_raises_is_told_of_once_and_the_others_go_on(journal: Journal, tmp_path: Path) -> None:
    class Broken:
        def on_step(self, event: protocol.Step) -> None:
            raise KeyError("no such column")

    told = Told()
    with Callbacks([Broken(), told], journal, tmp_path, "a"):
        start(journal)
        for number in (1, 2, 3):
            step(journal, number)
        while len(told.calls) < 4:
            time.sleep(0.01)
        finish(journal)
    assert [call for call, _ in told.calls] == ["start", "step", "step", "step", "end"]
    events = [protocol.decode_event(line) for line in journal.path.read_text().splitlines()]
    (notice,) = [event for event in events if isinstance(event, protocol.Notice)]
    assert "Broken.on_step is not called any more: KeyError: 'no such column' (test_callbacks.py:" in notice.text


def test_one_that_is_slow_holds_nothing_up_and_steps_are_left_out_for_it(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "MAX_WAITING", 5)
    go_on = threading.Event()

    class Slow(Told):
        def on_step(self, event: protocol.Step) -> None:
            go_on.wait(60)
            super().on_step(event)

    slow = Slow()
    with Callbacks([slow], journal, tmp_path, "a"):
        start(journal)
        while not slow.calls:  # the start is called, and waits no more: all places are for steps
            time.sleep(0.01)
        for number in range(1, 101):
            step(journal, number)
        evaluated(journal, 100, val_loss=1.0)
        assert [call for call, _ in slow.calls] == ["start"], "all steps are made while it has not done with the first"
        go_on.set()
        while ("evaluate", {"val_loss": 1.0}) not in slow.calls:
            time.sleep(0.01)
        finish(journal)
    steps = [number for call, number in slow.calls if call == "step"]
    assert 5 <= len(steps) <= 7
    assert slow.calls[-1] == ("end", "run_finished")
    assert journal.path.read_text().count("slower than training") == 1


def test_one_that_does_not_return_at_the_end_is_left(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(callbacks, "ON_END_S", 0.2)
    release = threading.Event()

    class Endless:
        def on_end(self, event: object) -> None:
            release.wait(20)

    with Callbacks([Endless()], journal, tmp_path, "a"):
        start(journal)
        finish(journal)
    assert "Endless.on_end did not return within 0.2 s" in capsys.readouterr().err
    release.set()


def test_csv_files_have_a_line_a_step_and_a_line_an_evaluation(journal: Journal, tmp_path: Path) -> None:
    for _ in range(2):  # the second is a run that goes on
        with Callbacks([loggers.CSVLogger(tmp_path / "figures")], journal, tmp_path, "a"):
            start(journal)
            step(journal, 1)
            evaluated(journal, 1, val_loss=0.4, accuracy=None)
        journal.listeners.clear()
    lines = (tmp_path / "figures" / "evaluations.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0] == "step,time,epoch,seconds,val_loss,accuracy"
    assert lines[1].endswith(",0.4,")
    assert (tmp_path / "figures" / "steps.csv").read_text().splitlines()[0].startswith("step,time,loss")

    with Callbacks(loggers.wanted("csv"), journal, tmp_path, "a"):  # as the setting asks: in the run's own folder
        start(journal)
        step(journal, 1)
    assert len((tmp_path / "steps.csv").read_text().splitlines()) == 2
    assert loggers.wanted("none") == []


def test_tensorboard_gets_the_figures_at_their_steps(journal: Journal, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Callbacks(loggers.wanted("tensorboard"), journal, tmp_path, "a"):
        start(journal)
        step(journal, 1)
        step(journal, 2)
        evaluated(journal, 2, val_loss=0.4, accuracy=None)
        finish(journal)
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(entry.step, entry.value) for entry in found.Scalars("train/loss")] == [(1, 0.5), (2, 0.5)]
    assert [(entry.step, round(entry.value, 6)) for entry in found.Scalars("val/loss")] == [(2, 0.4)]
    assert "val/accuracy" not in found.Tags()["scalars"]


def test_a_logger_whose_library_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for make, package in ((loggers.WandbLogger, "wandb"), (loggers.TensorBoardLogger, "tensorboard")):
        with pytest.raises(JobError, match=package) as error:
            make()
        assert error.value.hint == f"pip install {package}"
