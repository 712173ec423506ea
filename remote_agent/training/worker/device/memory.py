"""Finds how many samples a device can take at a time with a few small slices, without filling its memory.

A slice of ``b`` samples needs ``fixed + b * each`` bytes at its peak. Sizes grow, from the smallest, until the growth
stands out from what else goes on in memory; from two sizes follow ``fixed`` and ``each``, and from these what fits into
a safe part of what is free. A size is tried only where it fits even if the one before it had needed nothing but memory
for its samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from remote_agent.training.errors import CUT_HINT, TooLarge
from remote_agent.training.shared import flat
from remote_agent.training.worker.device import backend

MIB = 1 << 20

SIGNAL = 64 * MIB
"""Growth of the peak that is measured well enough."""

GROWTH = (8, 4, 2)
"""From one size to the next, the first that is safe."""


@dataclass(frozen=True)
class Need:
    """Bytes in use at the peak of a slice of ``b`` samples, beside everything else: ``fixed + b * each``."""

    fixed: float
    each: float

    def most(self, budget: float) -> int:
        """Samples that fit into ``budget`` bytes, at least 1."""
        return max(1, math.floor((budget - self.fixed) / self.each))


def check_room(model: nn.Module, device: torch.device) -> None:
    """Before the model is moved there: see that ``device`` has room for it and for what measuring it takes at least.

    That is a gradient, and a copy of all that has to be afterwards what it was before.

    Raises:
        TooLarge: it has not.
    """
    kind = backend.of(device)
    trained = sum(each.nbytes for each in flat.trained(model).values())
    weights = trained + sum(each.nbytes for each in flat.state(model).values())
    needed = weights + trained + (weights if kind.own_memory else 0)
    free = kind.free_bytes(device)
    if needed > free:
        raise TooLarge(
            f"the model does not fit on {device}: training it takes at least {needed / 1e9:.2f} GB more there,"
            f" {free / 1e9:.2f} GB are free",
            hint=CUT_HINT,
        )


def need(points: Sequence[tuple[int, int]]) -> Need | None:
    """From ``(samples, bytes at the peak)`` of the smallest and the largest size; None: a sample costs nothing much."""
    (small, low), (large, high) = min(points), max(points)
    if large <= small or high <= low:
        return None
    each = (high - low) / (large - small)
    return Need(low - small * each, each)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What was found.

    Attributes:
        most: samples that fit into the budget; None: more than anybody will ask for.
        each: bytes that a sample needs; 0: too few to be seen.
        budget: bytes that may be in use at the peak, by this process on the device.
    """

    most: int | None
    each: float
    budget: float


def find(
    device: torch.device, compute: Callable[[int], None], smallest: int, largest: Callable[[], int], batch: int
) -> Limit:
    """How many samples of a batch of ``batch`` the device can take at a time.

    Args:
        device: where ``compute`` computes.
        compute: forward and backward of that many samples.
        smallest: the first size to try, twice: the first time warms the device up.
        largest: asked after each size: none above it is tried.
        batch: more samples than that are never asked for.
    """
    kind = backend.of(device)
    before = kind.used_bytes(device)
    compute(smallest)
    points: list[tuple[int, int]] = []
    following: int | None = smallest
    while following is not None:
        points.append((following, kind.peak_bytes(device, partial(compute, following))))
        budget = kind.used_bytes(device) + kind.safe_part * kind.free_bytes(device)
        following = next_size(points, before, budget, largest())
    found = need(points)
    if found is None:
        return Limit(most=None, each=0.0, budget=budget)
    most = found.most(budget)
    return Limit(most=most if most < batch else None, each=found.each, budget=budget)


def next_size(points: Sequence[tuple[int, int]], before: int, budget: float, largest: int) -> int | None:
    """The size to try after ``points``; None: enough is known, or nothing larger is safe.

    Args:
        points: ``(samples, bytes at the peak)`` so far, sizes rising.
        before: bytes in use before the first.
        budget: bytes that may be in use.
        largest: no size above it is tried.
    """
    (_, low), (size, high) = points[0], points[-1]
    if size >= largest or high - low >= SIGNAL:
        return None
    for factor in GROWTH:
        following = min(factor * size, largest)
        if before + (high - before) * following / size <= budget:
            return following
    return None
