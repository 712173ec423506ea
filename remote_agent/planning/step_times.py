"""The times of a step that all views of a run show: measured, and predicted. Pure.

A run has three of them, and each has one name everywhere: *planned* is the prediction before the first step
(``PlanMade.predicted_step_s``), *predicted* the prediction of now, which follows lost or new workers
(:func:`predicted_s`), and *measured* what steps take now (:func:`measured_s`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from remote_agent import protocol

MEASURED_STEPS = 20
"""Newest steps of which the measured time is the median."""


def measured_s(steps: Sequence[protocol.Step]) -> float | None:
    """Median seconds of the newest steps, without the time between two steps; None: there is none.

    Those before a worker left or came do not count: others made them, and another time was predicted for them.
    """
    alike = [step.seconds for step in steps[-MEASURED_STEPS:] if _is_like(step, steps[-1])]
    return statistics.median(alike) if alike else None


def _is_like(step: protocol.Step, newest: protocol.Step) -> bool:
    """Whether the same workers made both; one may just be tried, which changes no prediction."""
    made, make = ({part.worker for part in each.workers} for each in (step, newest))
    return step.predicted_s == newest.predicted_s or made == make


def predicted_s(before: float | None, event: protocol.Event) -> float | None:
    """The predicted seconds of a step after one more event of a run; ``before``: until then. None: not known."""
    match event:
        case protocol.PlanMade():
            return event.predicted_step_s
        case protocol.Step() if event.predicted_s is not None:
            return event.predicted_s
        case protocol.RunResumed():
            return None  # its steps may be made by other workers
    return before
