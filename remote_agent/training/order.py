"""The one global, seeded order in which samples are used.

The order is the endless sequence of one permutation of the dataset after another (one an epoch); step ``t`` takes
the ``t``-th run of ``batch_size`` samples from it. Nothing is skipped at the end of an epoch, so every sample is used
once an epoch whatever the batch size, and any step's samples can be named without those before it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class SampleOrder:
    """Sample indices of every step, from ``(seed, size, batch)`` alone."""

    def __init__(self, seed: int, size: int, batch: int) -> None:
        if size < 1 or batch < 1:
            raise ValueError("a dataset and a batch hold at least one sample")
        self.size, self.batch = size, batch
        # Two epochs meet in one step at most while batch <= size, so two permutations are enough to keep.
        self._epoch = lru_cache(maxsize=2)(lambda epoch: np.random.default_rng((seed, epoch)).permutation(size))

    def step(self, step: int) -> Indices:
        """Indices of step ``step`` (from 1), int64 of shape ``(batch,)``."""
        return self.take((step - 1) * self.batch, step * self.batch)

    def take(self, start: int, end: int) -> Indices:
        """Indices number ``start`` to ``end`` of the endless sequence (from 0), int64 of shape ``(end - start,)``."""
        parts = []
        while start < end:
            epoch, position = divmod(start, self.size)
            part = self._epoch(epoch)[position : position + end - start]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts).astype(np.int64)
