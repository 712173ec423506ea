"""Random faults in one training: what it kept of its throughput, how long it stood still, and what that is called.

**Throughput kept among live capacity** is ``samples / (rate * live seconds)``, from the schedule's begin to its end:

- ``samples`` of new steps; those made again after a restore count for nothing.
- ``rate``: samples/s without a fault, measured in the same run, before the first fault and again once all are back from
  the last one; the better of the two.
- live seconds: the time, each second counted with the part of the capacity that was alive in it. A host's part is its
  device's speed alone over the sum of all (:attr:`benchmarks.faulty.devices.Devices.parts`).

It is given for two meanings of alive:

- *reachable*: the host has power and its cable is in; a slow device counts with its speed. All time that a process
  takes to start counts against who trains.
- *taking part*: besides, its worker is not known to be lost, or is back. This is a peer's live capacity: replicas that
  are up. Detection, stalls, and what the others lose by a fault count against who trains, and a killed coordinator all
  the time until steps are made again.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.faulty import figures
from benchmarks.faulty.execution import Execution, Training
from benchmarks.faulty.figures import Absence, Mark
from benchmarks.faulty.plan import Planned
from tests.lab.following import RunError

REACHABLE, TAKING_PART = "reachable", "taking part"

KEPT = 0.977
"""Least throughput kept among the live capacity that takes part: what torchft publishes for a schedule of this size."""

QUIET_S = 30.0
"""Without a fault, before the first and after the last: what the rate is measured in."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a training went through a schedule.

    Attributes:
        plan: what was to happen, all of which did but for what :attr:`torn` says.
        seconds: of the schedule.
        samples: of new steps in that time.
        rates: samples/s without a fault, before and after; empty where none was measured.
        kept: by meaning of alive (see the module); empty where no rate was measured.
        lost_s: seconds of training that each kind of fault cost, beside the capacity that took no part.
        stall: the longest time between two new steps, or from the last one to the end, over the median one.
        torn: what went wrong on the way.
    """

    plan: tuple[Planned, ...]
    seconds: float
    samples: int
    rates: tuple[float, ...] = ()
    kept: Mapping[str, float] = field(default_factory=dict)
    lost_s: Mapping[str, float] = field(default_factory=dict)
    stall: float
    torn: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Nothing was torn, and enough throughput was kept."""
        return not self.torn and self.kept.get(TAKING_PART, 1.0) >= KEPT

    @property
    def figures(self) -> dict[str, float]:
        """All of it in numbers, by what each is, with its unit."""
        rates = dict(zip(("before", "after"), self.rates, strict=False))
        return {
            "faults": len(self.plan),
            "schedule, s": self.seconds,
            "samples": self.samples,
            **{f"{when} the faults, samples/s": rate for when, rate in rates.items()},
            **{f"kept among what is {meaning}": part for meaning, part in self.kept.items()},
            **{f"lost by {kind}, s": seconds for kind, seconds in self.lost_s.items()},
            "longest stall, s": self.stall,
            "went wrong": len(self.torn),
        }


def go_through(
    training: Training,
    plan: Sequence[Planned],
    *,
    seconds: float,
    quiet_s: float = QUIET_S,
    say: Callable[[str], None] = lambda _: None,
) -> Course:
    """Strike a training that has settled with all that is planned.

    Args:
        training: ours or a peer's.
        plan: the faults.
        seconds: of the schedule.
        quiet_s: before and after it, to measure the rate; 0: the throughput is not to be compared.
        say: takes a line for each fault.

    Raises:
        RunError: the training has ended, or makes no steps without a fault.
    """
    quiet = [_left_in_peace(training, quiet_s)]
    with Execution(training, say) as execution:
        begin = execution.carry_out(plan, seconds)
        execution.recover()
    quiet.append(_left_in_peace(training, quiet_s))
    marks, end = training.progress(), begin + seconds
    rates: tuple[float, ...] = ()
    kept: dict[str, float] = {}
    lost: dict[str, float] = {}
    if quiet_s:
        rates = tuple(figures.rate(marks, *span) for span in quiet)
        if not rates[0]:
            raise RunError(f"no two steps in the {quiet_s:.0f} s before the first fault")
        parts, best = training.devices.parts, max(rates)
        taken = (*execution.absences, *training.away())
        for meaning, gone in ((REACHABLE, execution.absences), (TAKING_PART, taken)):
            kept[meaning] = figures.kept(marks, begin, end, best, parts, gone)
        lost = _lost_by_kind(marks, end, best, parts, taken, execution.struck)
    return Course(
        plan=tuple(plan),
        seconds=seconds,
        samples=figures.samples_between(marks, begin, end),
        rates=rates,
        kept=kept,
        lost_s=lost,
        stall=figures.stall(figures.closed(marks, end), begin, end),
        torn=tuple(execution.torn),
    )


def lines(course: Course) -> list[str]:
    """For people."""
    kinds = Counter(one.kind for one in course.plan)
    what = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    found = [
        f"  {len(course.plan)} faults in {course.seconds / 60:.1f} minutes ({what})",
        f"  {course.samples} samples; longest stall {course.stall:.1f} s",
    ]
    if course.rates:
        before, after = course.rates
        found.append(f"  {before:.0f} samples/s before the first fault, {after:.0f} after the last")
    found += [f"  throughput kept among what is {meaning}: {100 * part:.1f} %" for meaning, part in course.kept.items()]
    found += [f"  {kind}: {seconds / kinds[kind]:.1f} s lost each" for kind, seconds in course.lost_s.items()]
    return found + [f"  TORN: {text}" for text in course.torn]


def _left_in_peace(training: Training, seconds: float) -> tuple[float, float]:
    """From when to when (seconds since the epoch)."""
    begin = time.time()
    time.sleep(seconds)  # the schedule's own clock
    training.check()
    return begin, begin + seconds


def _lost_by_kind(
    marks: Sequence[Mark],
    end: float,
    rate: float,
    parts: Mapping[str, float],
    gone: Sequence[Absence],
    struck: Sequence[tuple[float, str]],
) -> dict[str, float]:
    """Seconds of live capacity without samples from each fault to the next one, summed by kind."""
    lost: dict[str, float] = {}
    for (begin, kind), (until, _) in itertools.pairwise((*struck, (end, ""))):
        missing = figures.live_seconds(begin, until, parts, gone)
        missing -= figures.samples_between(marks, begin, until) / rate
        lost[kind] = lost.get(kind, 0.0) + missing
    return lost
