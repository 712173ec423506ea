"""Defines callbacks that write a run's metrics to CSV files, TensorBoard, or Weights & Biases."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from remote_agent import protocol
from remote_agent.training.coordinator.reporting.callbacks import Callback
from remote_agent.training.errors import JobError

STEP_FIGURES = ("loss", "learning_rate", "gradient_norm", "seconds", "samples")
"""Figures of a step that are written by all loggers."""


FLUSH_S = 1.0
"""Seconds of the run from one flush of the files to the next."""


class CSVLogger(Callback):
    """Writes a line for each step to ``steps.csv``, and for each evaluation to ``evaluations.csv``.

    It appends to existing files. The first line determines the columns; metrics that appear later are not written.

    Args:
        folder: folder of the files; default: the run's own.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._files: dict[str, TextIO] = {}
        self._columns: dict[str, list[str]] = {}
        self._flushed = 0.0

    def on_start(self, event: protocol.RunStarted | protocol.RunResumed, folder: Path) -> None:
        self._folder = self._folder or folder
        self._folder.mkdir(parents=True, exist_ok=True)

    def on_step(self, event: protocol.Step) -> None:
        self._add("steps.csv", {"step": event.step, "time": event.time, **_figures_of(event)}, event.time)

    def on_evaluate(self, event: protocol.Evaluated) -> None:
        about = {"step": event.step, "time": event.time, "epoch": event.epoch, "seconds": event.seconds}
        self._add("evaluations.csv", about | event.metrics, event.time)

    def on_end(self, event: protocol.RunFinished | protocol.RunFailed) -> None:
        for file in self._files.values():
            file.close()

    def _add(self, name: str, row: Mapping[str, object], now: float) -> None:
        assert self._folder is not None, "the run has started"
        if name not in self._files:
            path = self._folder / name
            is_new = not path.exists() or not path.stat().st_size
            self._columns[name] = list(row) if is_new else next(csv.reader(path.open(encoding="utf-8")))
            self._files[name] = path.open("a", newline="", encoding="utf-8")
            if is_new:
                csv.writer(self._files[name]).writerow(row)
        csv.writer(self._files[name]).writerow([row.get(column) for column in self._columns[name]])
        if now - self._flushed >= FLUSH_S:
            self._flushed = now
            for each in self._files.values():
                each.flush()


class TensorBoardLogger(Callback):
    """Writes TensorBoard event files, with the metrics of steps under ``train/``, and of evaluations under ``val/``.

    Args:
        folder: folder of the files; default: ``tensorboard`` in the run's own folder.

    Raises:
        JobError: tensorboard is not installed.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        _needs("tensorboard", "TensorBoardLogger")
        self._folder = folder

    def on_start(self, event: protocol.RunStarted | protocol.RunResumed, folder: Path) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        self._summary: Any = Summary
        self._writer: Any = SummaryWriter(str(self._folder or folder / "tensorboard"))

    def on_step(self, event: protocol.Step) -> None:
        self._write("train", event.step, event.time, _figures_of(event).items())

    def on_evaluate(self, event: protocol.Evaluated) -> None:
        self._write("val", event.step, event.time, event.metrics.items())

    def on_end(self, event: protocol.RunFinished | protocol.RunFailed) -> None:
        self._writer.close()

    def _write(self, part: str, step: int, time: float, figures: Iterable[tuple[str, float | None]]) -> None:
        known = [(f"{part}/{name.removeprefix(part + '_')}", figure) for name, figure in figures if figure is not None]
        values = [self._summary.Value(tag=tag, simple_value=figure) for tag, figure in known]
        # All figures in one record: add_scalar makes one of each, which takes several times as long.
        self._writer.file_writer.add_summary(self._summary(value=values), step, walltime=time)


def wanted(log_to: str) -> list[Callback]:
    """The loggers for a value of ``log_to``; raises JobError if what they need is not installed here."""
    made: dict[str, Callable[[], Callback]] = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}
    return [made[log_to]()] if log_to in made else []


class WandbLogger(Callback):
    """Sends the metrics to Weights & Biases.

    Args:
        settings: arguments for ``wandb.init``: ``project``, ``name``, ``mode`` ...

    Raises:
        JobError: wandb is not installed.
    """

    def __init__(self, **settings: Any) -> None:
        _needs("wandb", "WandbLogger")
        self._settings = settings

    def on_start(self, event: protocol.RunStarted | protocol.RunResumed, folder: Path) -> None:
        import wandb

        config = event.config if isinstance(event, protocol.RunStarted) else {}
        self._run: Any = wandb.init(**{"config": config, "dir": str(folder), **self._settings})

    def on_step(self, event: protocol.Step) -> None:
        self._log("train", event.step, _figures_of(event))

    def on_evaluate(self, event: protocol.Evaluated) -> None:
        self._log("val", event.step, event.metrics)

    def on_end(self, event: protocol.RunFinished | protocol.RunFailed) -> None:
        self._run.finish(exit_code=0 if isinstance(event, protocol.RunFinished) else 1)

    def _log(self, part: str, step: int, figures: Mapping[str, float | None]) -> None:
        known = {f"{part}/{name.removeprefix(part + '_')}": value for name, value in figures.items()}
        self._run.log({name: value for name, value in known.items() if value is not None}, step=step)


def _figures_of(event: protocol.Step) -> dict[str, float | None]:
    return {name: getattr(event, name) for name in STEP_FIGURES} | event.scalars


def _needs(package: str, logger: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise JobError(f"{logger} needs {package}, which is not installed here", hint=f"pip install {package}")
