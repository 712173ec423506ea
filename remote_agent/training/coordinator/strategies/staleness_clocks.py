"""Decides which workers may start another slice in stale synchronous training. Pure.

A worker's *clock* is the number of its applied slices. With staleness ``s`` a worker may start its slice number ``c``
(from 0) once every worker's clock is at least ``c - s``, and its weights have to contain the first ``c - s`` slices of
every worker. ``s = 0`` is lockstep. See Ho et al., "More effective distributed ML via a stale synchronous parallel
parameter server" (NIPS 2013). Without a bound, every worker may always start, as in Recht et al., "Hogwild!" (NIPS
2011).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Worker = TypeVar("Worker")

MAX_QUEUED = 3
"""Number of slices that a worker has at a time: one being sent, one being computed, and the next."""


@dataclass
class _Clock:
    """One worker's clock: the number of slices given and applied, and (place, number) of the newest ones."""

    given: int
    done: int
    recent: deque[tuple[int, int]] = field(default_factory=deque)


class StalenessClocks(Generic[Worker]):
    """The clocks of all workers; ``staleness``: the bound; None: there is none."""

    def __init__(self, staleness: int | None) -> None:
        self._staleness = staleness
        self._clocks: dict[Worker, _Clock] = {}
        self._floor = 0

    def set_workers(self, workers: Collection[Worker]) -> None:
        """Set the workers that take part. A new one starts with the slowest clock; those that left no longer count."""
        for gone in [worker for worker in self._clocks if worker not in workers]:
            del self._clocks[gone]
        slowest = self._slowest()
        for worker in workers:
            self._clocks.setdefault(worker, _Clock(slowest, slowest))

    def may_begin(self, worker: Worker) -> bool:
        """Whether the worker may get another slice now."""
        clock = self._clocks[worker]
        if clock.given - clock.done >= MAX_QUEUED:
            return False
        return self._staleness is None or clock.given - self._slowest() <= self._staleness

    def give(self, worker: Worker, number: int) -> int:
        """Give slice ``number`` of the run to the worker.

        Returns:
            The newest slice that the worker's weights have to contain, which is already applied; 0: any weights.
        """
        clock = self._clocks[worker]
        needs = self._needs(clock.given)
        if self._staleness is not None:
            clock.recent.append((clock.given, number))
        clock.given += 1
        return needs

    def applied(self, worker: Worker) -> None:
        """Record that the worker's oldest slice is applied."""
        clock = self._clocks.get(worker)
        # A worker that was left out for a while may still have had a slice from before, which does not count here.
        if clock is not None and clock.done < clock.given:
            clock.done += 1

    def _slowest(self) -> int:
        return min((clock.done for clock in self._clocks.values()), default=0)

    def _needs(self, place: int) -> int:
        if self._staleness is None:
            return 0
        # No slice that is given later asks for fewer.
        least = min(clock.given for clock in self._clocks.values()) - self._staleness
        for clock in self._clocks.values():
            while clock.recent and clock.recent[0][0] < least:
                self._floor = max(self._floor, clock.recent.popleft()[1])
        asked = place - self._staleness
        older = [number for clock in self._clocks.values() for at, number in clock.recent if at < asked]
        return max([self._floor, *older])
