"""What a batch gave beside what its parts gave: whether these are the same, as far as rounding and chance go. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from remote_agent.training.shared.flat import HALVES
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code.losses import mean_of

NOISE = 1e-6
"""The most that a loss without randomness differs from one time to the next, as a part of itself: some kernels add up
in any order. Dropout may change a loss by as little as a part in ten thousand."""

GRADIENT_TOLERANCE = 1e-3
"""The most that the gradient may differ, as a part of its norm."""

HALF_GRADIENT_TOLERANCE = 2e-2
"""The same for a gradient in half precision, whose numbers are rounded by 4 parts in a thousand."""

PARAMETER_TOLERANCE = 3e-2
"""The most that one parameter's gradient may differ, as a part of its norm."""

GRADIENT_NOISE = 1e-5
"""What rounding may add to that, as a part of the whole gradient's norm: some gradients are nothing but rounding."""

FINE, CLEAR = 1e-6, 10.0
"""The user is told of a gradient that differs by more than this, as a part of its norm, and by so many times what the
last bit of each weight changes. Parts of a batch differ by 2e-7, and by 1.5 times of that, where only rounding does."""

STEADY = 0.1
"""What that last bit may change, as a part of the most that a gradient may differ: else it says nothing."""

CERTAIN = 6.0
"""Standard errors that random means may differ by."""


Gradient = Sequence[Tensor]
"""Some numbers of each parameter's gradient, float64."""


@dataclass(frozen=True)
class Seen:
    """One call of the loss: the sum over its samples, their weight, and the model's state afterwards."""

    total: float
    weight: float
    samples: int
    state: dict[str, Tensor]
    plain: bool = True
    unknown: str = ""

    @property
    def mean(self) -> float:
        return mean_of([(self.total, self.weight)])


def mean(*parts: Seen) -> float:
    """The loss of parts together."""
    return mean_of([(part.total, part.weight) for part in parts])


def spread(samples: Indices, count: int) -> Indices:
    """Some of the samples, from all over: what is sorted by label or length would look more alike than it is."""
    return samples[np.unique(np.linspace(0, len(samples) - 1, count).astype(np.int64))]


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal; NaN is equal to NaN."""
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and bool(((one == other) | (one.isnan() & other.isnan())).all())


def follows(whole: Tensor, left: Tensor, right: Tensor, a: int, b: int, tolerance: float) -> bool:
    """Whether state is the mean over parts of ``a`` and ``b`` samples; of whole numbers, the largest."""
    if not whole.is_floating_point():
        return torch.equal(whole, torch.maximum(left, right))
    mean = (left.cpu().double() * a + right.cpu().double() * b) / (a + b)
    scale = float(whole.abs().max()) if whole.numel() else 0.0
    return torch.allclose(whole.cpu().double(), mean, rtol=tolerance, atol=1e-7 + 1e-2 * tolerance * scale)


def is_same(one: Seen, other: Seen) -> bool:
    """Whether two calls with other random numbers gave the same loss: it has none."""
    if not (math.isfinite(one.mean) and math.isfinite(other.mean)):
        return True
    return math.isclose(one.mean, other.mean, rel_tol=NOISE, abs_tol=1e-12)


def is_zero(differences: Sequence[float]) -> bool:
    """Whether the mean of these is 0 as far as can be told."""
    if not all(map(math.isfinite, differences)):
        return True  # the first step tells of it
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return abs(statistics.fmean(differences)) <= CERTAIN * error + 1e-6


def adds_up(whole: Gradient, left: Gradient, right: Gradient, rounded: Gradient, coarse: float) -> bool:
    """Whether the gradient of the whole is the sum of its parts' gradients.

    Args:
        whole: some numbers of each parameter's gradient.
        left: of one part of the samples.
        right: of the other one.
        rounded: of the whole with weights that are rounded otherwise and other random numbers, which tells how far that
            can be said.
        coarse: how many times less exactly than on a CPU the device computes.
    """
    differ, norms, steady = _apart(whole, left, right), _norms(whole, left, right), _apart(whole, rounded)
    size = math.hypot(*(float(each.norm()) for each in whole))
    is_half = any(map(_is_half, whole))
    most = max(GRADIENT_TOLERANCE * coarse, HALF_GRADIENT_TOLERANCE * is_half) * math.hypot(*norms) + 1e-12
    if math.hypot(*differ) > most and math.hypot(*steady) <= STEADY * most:
        return False
    if is_half:
        return True
    noise = GRADIENT_NOISE * coarse**2 * size + 1e-12
    limits = [PARAMETER_TOLERANCE * coarse * norm + noise for norm in norms]
    return not any(
        off > limit and own <= STEADY * limit for off, own, limit in zip(differ, steady, limits, strict=True)
    )


def is_sum(whole: Gradient, left: Gradient, right: Gradient) -> bool:
    """Whether a gradient, which is not 0, is for certain the sum of its parts' gradients."""
    differ, norms = _apart(whole, left, right), _norms(whole, left, right)
    size = math.hypot(*norms)
    return size > 0 and all(
        off <= GRADIENT_TOLERANCE * norm + GRADIENT_NOISE * size for off, norm in zip(differ, norms, strict=True)
    )


def apart(whole: Gradient, left: Gradient, right: Gradient, rounded: Gradient, coarse: float) -> float:
    """How far a gradient that :func:`adds_up` is from doing so, as a part of its norm; 0: as far as rounding does."""
    size = math.hypot(*_norms(whole, left, right))
    if not size or any(map(_is_half, whole)):
        return 0.0
    differ, noise = (math.hypot(*each) / size for each in (_apart(whole, left, right), _apart(whole, rounded)))
    return differ if differ > max(FINE * coarse**2, CLEAR * noise) else 0.0


def _apart(whole: Gradient, *parts: Gradient) -> list[float]:
    """Of each parameter how far the whole is from the parts' sum."""
    return [float((one - sum(each)).norm()) for one, *each in zip(whole, *parts, strict=True)]


def _norms(*gradients: Gradient) -> list[float]:
    return [sum(float(each.norm()) for each in of_one) for of_one in zip(*gradients, strict=True)]


def _is_half(gradient: Tensor) -> bool:
    """Whether all numbers are of half precision: then there is autocast in the user's code, and more rounding."""
    # A gradient of zeros and ones says nothing.
    return len(set(gradient.tolist())) > 2 and any(torch.equal(gradient.to(kind).double(), gradient) for kind in HALVES)
