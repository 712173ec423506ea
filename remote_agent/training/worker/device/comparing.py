"""What a batch gave beside what its parts gave: whether these are the same, as far as rounding and chance go. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remote_agent.training.user_code.losses import mean_of

NOISE = 1e-6
"""The most that a loss without randomness differs from one time to the next, as a part of itself: some kernels add up
in any order. Dropout may change a loss by as little as a part in ten thousand."""

CERTAIN = 6.0
"""Standard errors that random means may differ by."""


@dataclass(frozen=True)
class Seen:
    """One call of the loss: the sum over its samples, their weight, and the model's state afterwards."""

    total: float
    weight: float
    samples: int
    plain: bool
    unknown: str
    state: dict[str, Tensor]

    @property
    def mean(self) -> float:
        return mean_of([(self.total, self.weight)])


def mean(*parts: Seen) -> float:
    """The loss of parts together."""
    return mean_of([(part.total, part.weight) for part in parts])


def follows(whole: Tensor, left: Tensor, right: Tensor, a: int, b: int, tolerance: float) -> bool:
    """Whether state is the mean over parts of ``a`` and ``b`` samples; of whole numbers, the largest."""
    if not whole.is_floating_point():
        return torch.equal(whole, torch.maximum(left, right))
    mean = (left.double().cpu() * a + right.double().cpu() * b) / (a + b)
    scale = float(whole.abs().max()) if whole.numel() else 0.0
    return torch.allclose(whole.double().cpu(), mean, rtol=tolerance, atol=1e-7 + 1e-2 * tolerance * scale)


def is_same(one: Seen, other: Seen) -> bool:
    """Whether two calls with other random numbers gave the same loss: it has none."""
    if not (math.isfinite(one.mean) and math.isfinite(other.mean)):
        return True
    return math.isclose(one.mean, other.mean, rel_tol=NOISE, abs_tol=1e-12)


def is_zero(differences: Sequence[float]) -> bool:
    """Whether the mean of these is 0 as far as can be told."""
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return abs(statistics.fmean(differences)) <= CERTAIN * error + 1e-6
