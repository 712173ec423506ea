"""The one global, seeded order in which samples are used.

The order is the endless sequence of one permutation of the dataset after another (one an epoch). A *position* counts
samples of that sequence from 0. Each step takes the next run of ``batch`` positions; a strategy with steps of other
sizes (``local_sgd``) or without common steps (``ssp``, ``async``) takes its own runs one after the other, from
:attr:`SampleOrder.start` on, and never beyond :attr:`SampleOrder.limit`. Nothing is skipped at the end of an epoch, so
every sample is used once an epoch whatever the batch size, and any step's samples can be named without those before it.
"""

from __future__ import annotations

import copy
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class SampleOrder:
    """Sample indices of every step, from ``(seed, size, batch)`` alone.

    Args:
        seed: of the permutations.
        size: samples of the dataset.
        batch: samples of a step.
        limit: the position where the run ends: its last step is cut there; None: it has no end.
        done: steps that were made before this order is used: 0, or those of the checkpoint that a run goes on from.
        start: positions that they used.

    Attributes:
        start: the first position to be used.
        limit: as above.
    """

    def __init__(
        self, seed: int, size: int, batch: int, *, limit: int | None = None, done: int = 0, start: int = 0
    ) -> None:
        if size < 1 or batch < 1:
            raise ValueError("a dataset and a batch hold at least one sample")
        self.seed, self.size, self.batch = seed, size, batch
        self.limit, self.done, self.start = limit, done, start
        # Two epochs meet in one step at most while batch <= size, so two permutations are enough to keep.
        self._epoch = lru_cache(maxsize=2)(lambda epoch: np.random.default_rng((seed, epoch)).permutation(size))

    def going_on(self, done: int, start: int) -> SampleOrder:
        """The same order for a run that goes on after ``done`` steps, which used the positions up to ``start``."""
        other = copy.copy(self)
        other.done, other.start = done, start
        return other

    def span(self, step: int) -> tuple[int, int]:
        """Positions (begin, end) of step ``step`` (from 1) in steps of ``batch``; shorter at the limit, empty after."""
        begin = self.start + (step - 1 - self.done) * self.batch
        return self.until(begin), self.until(begin + self.batch)

    def until(self, position: int) -> int:
        """``position``, or the limit where that comes first."""
        return position if self.limit is None else min(position, self.limit)

    def step(self, step: int) -> Indices:
        """Indices of step ``step`` (from 1), int64 of shape ``(batch,)``; shorter where the limit cuts it."""
        return self.take(*self.span(step))

    def take(self, start: int, end: int) -> Indices:
        """Indices at the positions ``start`` to ``end`` (exclusive), int64 of shape ``(end - start,)``."""
        parts = [np.empty(0, np.int64)]
        while start < end:
            epoch, position = divmod(start, self.size)
            part = self._epoch(epoch)[position : position + end - start]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts).astype(np.int64)
