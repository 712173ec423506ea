"""Stalls out of a run's events. Pure.

Only progress counts: a step that is made again after a restore is not a new one, and does not end a stall.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remote_agent import protocol


@dataclass(frozen=True)
class Mark:
    """Step ``step`` was made for the first time, at ``time`` (seconds since the epoch)."""

    time: float
    step: int


def progress(events: Iterable[protocol.Event]) -> tuple[Mark, ...]:
    """The steps that had not been made before, in order."""
    marks: list[Mark] = []
    for event in events:
        if isinstance(event, protocol.Step) and (not marks or event.step > marks[-1].step):
            marks.append(Mark(event.time, event.step))
    return tuple(marks)


def stall(marks: Sequence[Mark], begin: float, end: float) -> float:
    """By how much the longest gap between two new steps that overlaps ``begin`` to ``end`` exceeds the median gap, s.

    Raises:
        ValueError: no gap does.
    """
    gaps = [(before.time, after.time) for before, after in itertools.pairwise(marks)]
    hit = [after - before for before, after in gaps if after > begin and before < end]
    if not hit:
        raise ValueError("no step was made around the fault")
    return max(hit) - statistics.median(after - before for before, after in gaps)


def noise(marks: Sequence[Mark], faults: Iterable[tuple[float, float]]) -> float:
    """As :func:`stall`, for the time that none of ``faults`` (begin, end) overlaps; 0 if there is none."""
    spans = tuple(faults)
    gaps = [(before.time, after.time) for before, after in itertools.pairwise(marks)]
    free = [after - before for before, after in gaps if not any(after > begin and before < end for begin, end in spans)]
    return max(free) - statistics.median(after - before for before, after in gaps) if free else 0.0
