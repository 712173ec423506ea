"""What torchft's replicas say that they committed (:mod:`benchmarks.peers.torchft_faults`), as figures. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.faulty import figures
from benchmarks.faulty.figures import Absence, Mark

RECENT_STEPS = 5
"""Who committed none of the newest steps does not take part."""


@dataclass(frozen=True)
class Commit:
    """One step that a replica committed: when, with how many participants by its count, and whether it was one."""

    time: float
    step: int
    participants: int
    present: bool


@dataclass(frozen=True)
class Commits:
    """What all replicas committed.

    Attributes:
        of: by host, in order.
        part: samples of one replica in one step.
    """

    of: Mapping[str, Sequence[Commit]]
    part: int

    @property
    def newest(self) -> int:
        """The newest step; 0: none."""
        return max((one.step for commits in self.of.values() for one in commits), default=0)

    def progress(self) -> tuple[Mark, ...]:
        """Each step when the first replica committed it, with the most participants that one of them counted.

        A step that is committed again after all replicas were lost is not a new one.
        """
        first: dict[int, Commit] = {}
        for one in sorted((one for commits in self.of.values() for one in commits), key=lambda one: one.time):
            earlier = first.setdefault(one.step, one)
            if one.participants > earlier.participants:
                first[one.step] = dataclasses.replace(earlier, participants=one.participants)
        return tuple(Mark(one.time, step, one.participants * self.part) for step, one in sorted(first.items()))

    def away(self, end: float) -> tuple[Absence, ...]:
        """From the first step that the others commit without a host until the first one with it, ``end`` if none."""
        present: dict[int, set[str]] = {}
        for host, commits in self.of.items():
            for one in commits:
                present.setdefault(one.step, set()).update({host} if one.present else ())
        steps = [(mark.time, frozenset(present[mark.step])) for mark in self.progress()]
        return figures.missing_spans(steps, self.of, end)

    def missing(self) -> frozenset[str]:
        """Hosts that do not take part now."""
        oldest = self.newest - RECENT_STEPS
        return frozenset(
            host
            for host, commits in self.of.items()
            if not any(one.present and one.step > oldest for one in commits[-RECENT_STEPS:])
        )

    def left_out(self) -> int:
        """Samples of committed steps that no replica took, by torchft's own counts of participants."""
        whole = len(self.of) * self.part
        return sum(whole - mark.samples for mark in self.progress())

    def twice(self) -> int:
        """Samples that a replica took part with in a step that it had committed before."""
        counts = (Counter(one.step for one in commits if one.present) for commits in self.of.values())
        return self.part * sum(count - 1 for steps in counts for count in steps.values())


def read(texts: Mapping[str, str], part: int) -> Commits:
    """Each host's report; a line that is just being written is left out."""
    return Commits(
        {
            host: [Commit(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]
            for host, text in texts.items()
        },
        part,
    )
