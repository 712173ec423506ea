"""The one global order in which samples are used: a sequence of epochs, and where the steps are cut in it.

A *position* counts samples of that sequence from 0. A strategy with common steps asks for the positions of step after
step. One with steps of other sizes (``local_sgd``) takes its own runs of positions one after the other, from
:attr:`SampleOrder.start` on, and never beyond :attr:`SampleOrder.limit`.

- :class:`SampleOrder`, of data without a ``DataLoader``: the endless sequence of one seeded permutation after another.
  Each step takes the next ``batch`` positions, across the end of an epoch too. Nothing is left out there, so every
  sample is used once an epoch whatever the batch, and any step's samples can be named without those before it.
- :class:`EpochOrder`, of a ``DataLoader``: the steps are its batches, and one ends where an epoch ends.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np

from remote_agent.training.shared.slices import Indices


class SampleOrder:
    """Sample indices of every step, from ``(seed, size, batch)`` alone.

    Args:
        seed: of the permutations.
        limit: the position where the run ends: its last step is cut there; None: it has no end.
        done: steps that were made before this order is used: 0, or those of the checkpoint that a run goes on from.
        start: positions that they used.

    Attributes:
        start: the first position to be used.
    """

    def __init__(
        self, seed: int, size: int, batch: int, *, limit: int | None = None, done: int = 0, start: int = 0
    ) -> None:
        if size < 1 or batch < 1:
            raise ValueError("a dataset and a batch hold at least one sample")
        self.seed, self.size, self.batch = seed, size, batch
        self.limit, self.done, self.start = limit, done, start
        # Two epochs meet in one step at most while batch <= size, so two permutations are enough to keep.
        self._permutation = lru_cache(maxsize=2)(permutation_of(seed, size))

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
            part = self._permutation(epoch)[position : position + end - start]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts).astype(np.int64)

    def epoch_end(self, position: int) -> int:
        """Where the epoch ends that ``position`` lies in."""
        return (position // self.size + 1) * self.size


class Epochs(Protocol):
    """The epochs of a loader; ``same``: all of them have the batches of the first."""

    same: bool

    def ends(self, epoch: int) -> Indices:
        """Where the batches of ``epoch`` (from 0) end, in samples from its beginning; at least one, and rising."""

    def indices(self, epoch: int) -> Indices:
        """The samples of ``epoch`` in their order."""


class EpochOrder(SampleOrder):
    """Epoch after epoch of a loader.

    Args:
        size: samples of the dataset; an epoch may have fewer, or more.
        batch: samples of a step where ``whole`` is False; no step of a loader's own is larger.
        count: epochs of the run; 0: it has no end.
        whole: a step is a batch of the loader; False: a run of ``batch`` positions, across the end of an epoch too.
        done: as in :class:`SampleOrder`.
        start: as in :class:`SampleOrder`. Where it lies within a batch, the first step is the rest of that.
    """

    def __init__(
        self,
        epochs: Epochs,
        size: int,
        batch: int,
        *,
        count: int = 0,
        whole: bool = True,
        done: int = 0,
        start: int = 0,
    ) -> None:
        super().__init__(0, size, batch, done=done, start=start)
        self._epochs, self._count, self._whole = epochs, count, whole
        self._begins, self._batches = [0], [0]  # positions and batches before each known epoch, and after the last
        self._first = (-1, 0)  # a position, and the batch that it lies in
        self._know(0)
        if count and epochs.same:
            self.limit = count * self._begins[1]
        elif count:
            while not self._is_all_known():
                self._know(self._begins[-1])
            self.limit = self._begins[-1]

    def span(self, step: int) -> tuple[int, int]:
        """Positions (begin, end) of step ``step`` (from 1); empty after the last."""
        if not self._whole:
            return super().span(step)
        if self._first[0] != self.start:
            self._first = (self.start, self._batch_at(self.start))
        batch = self._first[1] + step - 1 - self.done
        return max(self.start, self._end(batch - 1)), self._end(batch)

    def take(self, start: int, end: int) -> Indices:
        parts = [np.empty(0, np.int64)]
        while start < end:
            epoch = self._epoch_at(start)
            begin = self._begins[epoch]
            part = self._epochs.indices(epoch)[start - begin : min(end, self._begins[epoch + 1]) - begin]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts)

    def epoch_end(self, position: int) -> int:
        return self._begins[min(self._epoch_at(position) + 1, len(self._begins) - 1)]

    @property
    def first_epoch(self) -> tuple[int, int]:
        """Samples and batches of the first epoch."""
        return self._begins[1], self._batches[1]

    def steps_left(self) -> int:
        """Batches from the start to the limit, which there has to be."""
        total = self._count * self._batches[1] if self._epochs.same else self._batches[-1]
        return total - self._batch_at(self.start)

    def _is_all_known(self) -> bool:
        return bool(self._count) and len(self._begins) > self._count

    def _know(self, position: int) -> None:
        """Have the epochs up to the one that ``position`` lies in."""
        while self._begins[-1] <= position and not self._is_all_known():
            ends = self._epochs.ends(len(self._begins) - 1)
            self._begins.append(self._begins[-1] + int(ends[-1]))
            self._batches.append(self._batches[-1] + len(ends))

    def _epoch_at(self, position: int) -> int:
        self._know(position)
        return bisect.bisect_right(self._begins, position) - 1

    def _batch_at(self, position: int) -> int:
        """The number, from 0, of the batch that ``position`` lies in; that of all batches at the limit."""
        epoch = self._epoch_at(position)
        if epoch == len(self._batches) - 1:
            return self._batches[-1]
        inside = np.searchsorted(self._epochs.ends(epoch), position - self._begins[epoch], side="right")
        return self._batches[epoch] + int(inside)

    def _end(self, batch: int) -> int:
        """The position where batch number ``batch`` ends; the limit if there are not so many."""
        while self._batches[-1] <= batch and not self._is_all_known():
            self._know(self._begins[-1])
        epoch = bisect.bisect_right(self._batches, batch) - 1
        if epoch < 0 or epoch == len(self._batches) - 1:
            return 0 if epoch < 0 else self._begins[-1]
        return self._begins[epoch] + int(self._epochs.ends(epoch)[batch - self._batches[epoch]])


def permutation_of(seed: int, size: int) -> Callable[[int], Indices]:
    """A run's own shuffle of ``size`` samples: from the number of the epoch, from 0, to its permutation."""
    return lambda epoch: np.random.default_rng((seed, epoch)).permutation(size)
