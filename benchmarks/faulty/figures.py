"""Figures out of a run's events: stalls, and the throughput that was kept of what was alive. Pure.

Only progress counts: a step that is made again after a restore is not a new one, and neither ends a stall nor adds to
the throughput.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from remote_agent import protocol


@dataclass(frozen=True)
class Mark:
    """Step ``step`` was made for the first time, at ``time`` (seconds since the epoch), with so many samples."""

    time: float
    step: int
    samples: int


@dataclass(frozen=True)
class Absence:
    """From ``begin`` to ``end`` (seconds since the epoch) this ``part`` of a host's capacity was not there."""

    host: str
    begin: float
    end: float
    part: float = 1.0


def progress(events: Iterable[protocol.Event]) -> tuple[Mark, ...]:
    """The steps that had not been made before, in order."""
    marks: list[Mark] = []
    for event in events:
        if isinstance(event, protocol.Step) and (not marks or event.step > marks[-1].step):
            marks.append(Mark(event.time, event.step, event.samples))
    return tuple(marks)


def usual_gap(marks: Sequence[Mark]) -> float:
    """The median of the times between two steps, in seconds."""
    return statistics.median(after.time - before.time for before, after in itertools.pairwise(marks))


def stall(marks: Sequence[Mark], begin: float, end: float) -> float:
    """By how much the longest gap between two new steps that overlaps ``begin`` to ``end`` exceeds the median gap, s.

    Raises:
        ValueError: no gap does.
    """
    hit = [
        after.time - before.time
        for before, after in itertools.pairwise(marks)
        if after.time > begin and before.time < end
    ]
    if not hit:
        raise ValueError("no step was made around the fault")
    return max(hit) - usual_gap(marks)


def closed(marks: Sequence[Mark], end: float) -> tuple[Mark, ...]:
    """Marks of which the last is not before ``end``: who stood still until then has a gap that ends there."""
    last = marks[-1]
    return (*marks, Mark(end, last.step + 1, 0)) if last.time < end else tuple(marks)


def noise(marks: Sequence[Mark], faults: Iterable[tuple[float, float]]) -> float:
    """As :func:`stall`, for the time that none of ``faults`` (begin, end) overlaps; 0 if there is none."""
    spans = tuple(faults)
    free = [
        after.time - before.time
        for before, after in itertools.pairwise(marks)
        if not any(after.time > begin and before.time < end for begin, end in spans)
    ]
    return max(free) - usual_gap(marks) if free else 0.0


def live_seconds(begin: float, end: float, shares: Mapping[str, float], absences: Iterable[Absence]) -> float:
    """Seconds from ``begin`` to ``end``, each counted with the part of the whole capacity that was alive.

    Args:
        begin: seconds since the epoch.
        end: the same.
        shares: each host's part of the capacity; they sum to 1.
        absences: what was not there; of several at once on a host the largest counts.
    """
    known = tuple(absences)
    cuts = sorted({begin, end, *(time for one in known for time in (one.begin, one.end) if begin < time < end)})
    total = 0.0
    for before, after in itertools.pairwise(cuts):
        gone = dict.fromkeys(shares, 0.0)
        for one in known:
            if one.host in gone and one.begin <= before and one.end >= after:
                gone[one.host] = max(gone[one.host], one.part)
        total += (after - before) * sum(share * (1 - gone[host]) for host, share in shares.items())
    return total


def samples_between(marks: Iterable[Mark], begin: float, end: float) -> int:
    """Samples of the new steps that were made in that time."""
    return sum(mark.samples for mark in marks if begin < mark.time <= end)


def rate(marks: Sequence[Mark], begin: float, end: float) -> float:
    """Samples/s between the first and the last new step that were made from ``begin`` to ``end``; 0: fewer than two."""
    within = [mark for mark in marks if begin <= mark.time <= end]
    if len(within) < 2:
        return 0.0
    return sum(mark.samples for mark in within[1:]) / (within[-1].time - within[0].time)


def kept(
    marks: Iterable[Mark], begin: float, end: float, rate: float, shares: Mapping[str, float], gone: Iterable[Absence]
) -> float:
    """Throughput kept among live capacity: samples made over what ``rate`` (samples/s, all alive) gives for it."""
    return samples_between(marks, begin, end) / (rate * live_seconds(begin, end, shares, gone))


def away_spans(events: Sequence[protocol.Event], hosts: Iterable[str], end: float) -> tuple[Absence, ...]:
    """When each host's worker took no part: from the word that it is lost until it joins, ``end`` if it does not.

    A plan (a run that goes on makes a new one) says the same of all hosts at once: who is in it is there.
    """
    every = frozenset(hosts)
    present = every
    states: list[tuple[float, frozenset[str]]] = []
    for event in events:
        if isinstance(event, protocol.WorkerLost):
            present -= {event.host}
        elif isinstance(event, protocol.WorkerJoined):
            present |= {event.host}
        elif isinstance(event, protocol.PlanMade):
            present = frozenset(share.host for share in event.shares)
        else:
            continue
        states.append((event.time, present))
    return missing_spans(states, every, end)


def missing_spans(
    steps: Iterable[tuple[float, frozenset[str]]], hosts: Iterable[str], end: float
) -> tuple[Absence, ...]:
    """When each of ``hosts`` took no part, from ``steps`` (time, who took part) in order.

    Who is not back is away until ``end``.
    """
    since: dict[str, float] = {}
    found: list[Absence] = []
    every = frozenset(hosts)
    for time, present in steps:
        for host in every - present:
            since.setdefault(host, time)
        found += [Absence(host, since.pop(host), time) for host in sorted(present & since.keys())]
    return (*found, *(Absence(host, begin, end) for host, begin in since.items()))
