"""Randomness in the user's data code: the same for a sample in whatever slice, on whichever worker, however often.

A data set that draws random numbers (augmentation) does so from the global generators of ``random``, ``numpy`` and
``torch``. They are seeded before each sample by the run's seed and the sample's position in the run's order: another
one in every epoch, and the same one when a slice is issued again. A generator of the data set's own is up to it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

_MASK = (1 << 64) - 1


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """What the block draws from torch's generator on the CPU leaves it as it was: dropout draws from it, too."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


@contextlib.contextmanager
def only_here(seed: int) -> Iterator[None]:
    """The block's random numbers are those of ``seed``; afterwards all global generators are as they were."""
    python, numpy_ = random.getstate(), np.random.get_state()
    with apart():
        seed_all(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_)


def seed_all(seed: int) -> None:
    """Seed the global generators of ``random``, ``numpy`` and ``torch`` (on the CPU), in some 10 us."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


def sample_seed(seed: int, position: int) -> int:
    """The seed, of 63 bits, of the sample at ``position`` of a run's order (splitmix64 of both)."""
    return _mixed(_mixed(seed) + position) >> 1


def _mixed(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
