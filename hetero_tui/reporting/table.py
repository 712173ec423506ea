"""A run's figures for other programs: CSV with a row a step, or one JSON document."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from hetero_tui.reporting.figures import Figures
from remote_agent import protocol
from remote_agent.goals import shown

_OF_A_STEP = ("step", "time", "loss", "learning_rate", "gradient_norm", "seconds", "samples")
_BYTES = ("bytes_pushed", "bytes_pulled")


def as_csv(figures: Figures) -> str:
    """A row a step; the job's own figures and those of evaluations have columns of their own. Unknown is empty."""
    scalars = sorted({name for step in figures.steps for name in step.scalars})
    metrics = sorted({name for each in figures.evaluations for name in each.metrics})
    taken = {*_OF_A_STEP, *_BYTES, *scalars}
    columns = [f"val_{name}" if name in taken else name for name in map(shown, metrics)]
    evaluated = {each.step: each.metrics for each in figures.evaluations}
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*_OF_A_STEP, *_BYTES, *scalars, *columns])
    for step in figures.steps:
        fields = [getattr(step, name) for name in (*_OF_A_STEP, *_BYTES)]
        measured = evaluated.get(step.step, {})
        writer.writerow([*fields, *map(step.scalars.get, scalars), *map(measured.get, metrics)])
    return written.getvalue()


def as_document(figures: Figures) -> dict[str, Any]:
    """Everything."""
    started, finished, failed = figures.started, figures.finished, figures.failed
    return {
        "run": figures.run,
        "job": started.job if started is not None else "",
        "settings": figures.settings,
        "parameters": started.parameters if started is not None else None,
        "started": started.time if started is not None else None,
        "ended": figures.last.time if figures.last is not None and (finished or failed) else None,
        "final_loss": finished.final_loss if finished is not None else None,
        "checkpoint": finished.checkpoint if finished is not None else None,
        "evaluation": finished.evaluation if finished is not None else {},
        "failure": failed.cause if failed is not None else None,
        "steps": [
            {name: getattr(step, name) for name in (*_OF_A_STEP, *_BYTES)}
            | {"scalars": step.scalars, "workers": [_part(part) for part in step.workers]}
            for step in figures.steps
        ],
        "evaluations": [
            {"step": each.step, "time": each.time, "samples": each.samples, "metrics": each.metrics, "best": each.best}
            for each in figures.evaluations
        ],
        "happened": [
            {"time": each.time, "step": each.step, "level": str(each.level), "text": each.text}
            for each in figures.happened
        ],
    }


def as_json(figures: Figures) -> str:
    """:func:`as_document`, written."""
    return json.dumps(as_document(figures), indent=1, allow_nan=False) + "\n"


def _part(part: protocol.WorkerStep) -> dict[str, Any]:
    names = ("worker", "samples", "compute_s", "push_s", "pull_s", "wait_s")
    return {name: getattr(part, name) for name in names}
