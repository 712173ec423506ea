"""Cuts one step's batch into slices by measured speed. Pure.

A device needs ``o + b / s`` seconds for ``b`` samples: ``o`` its fixed cost of a step, ``s`` its speed. The step is
shortest when all devices finish at the same time ``T``, each with ``s (T - o)`` samples, none above its memory's limit
``m``: ``T`` solves ``sum(min(m_i, s_i * max(0, T - o_i))) = G``. Without limits, ``T = (G + sum s_i o_i) / sum s_i``.
A device with ``o >= T`` is left out: by the time it has started, the others are done.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from itertools import pairwise

from remote_agent.planning.device_profile import DeviceProfile


def balanced_time(batch: int, profiles: Sequence[DeviceProfile]) -> float:
    """The time ``T`` in seconds at which all devices finish a batch of ``batch`` samples together.

    Raises:
        ValueError: there is no device, or their memory limits together are below ``batch``.
    """
    room = sum(math.inf if profile.max_batch is None else profile.max_batch for profile in profiles)
    if room < batch:
        raise ValueError(f"a batch of {batch} does not fit: the devices' limits allow {room:.0f} samples together")
    # The capacity by time t is piecewise linear: a device starts to count at o and is full at o + m / s.
    turns = [(profile.overhead_s, profile.speed) for profile in profiles]
    turns += [(p.overhead_s + p.max_batch / p.speed, -p.speed) for p in profiles if p.max_batch is not None]
    done, slope, now = 0.0, 0.0, 0.0
    for time, change in sorted(turns):
        if slope > 0 and done + slope * (time - now) >= batch:
            break
        done, now = done + slope * (time - now), time
        slope = max(0.0, slope + change)
    return now + max(0.0, batch - done) / slope if slope > 0 else now


def split(batch: int, profiles: Sequence[DeviceProfile], least: int = 1) -> tuple[int, ...]:
    """Samples for each device, in the order of ``profiles``; they sum to ``batch`` exactly.

    The real-valued optimum is rounded down; each sample left over goes where it ends soonest.

    Args:
        least: see :func:`without_small_slices`.

    Raises:
        ValueError: as :func:`balanced_time`.
    """
    if not profiles:
        raise ValueError("there is no device to train on")
    time = balanced_time(batch, profiles)
    limits = [batch if profile.max_batch is None else profile.max_batch for profile in profiles]
    shares = [
        min(limit, math.floor(profile.speed * max(0.0, time - profile.overhead_s) + 1e-9))
        for profile, limit in zip(profiles, limits, strict=True)
    ]
    # Floors leave fewer samples than there are devices, and float error at most one too many.
    while sum(shares) > batch:
        slowest = max(range(len(shares)), key=lambda index: profiles[index].seconds(shares[index]))
        shares[slowest] -= 1
    while sum(shares) < batch:
        free = [index for index in range(len(shares)) if shares[index] < limits[index]]
        soonest = min(free, key=lambda index: profiles[index].seconds(shares[index] + 1))
        shares[soonest] += 1
    return without_small_slices(shares, limits, least)


def without_small_slices(shares: Sequence[int], limits: Sequence[int], least: int) -> tuple[int, ...]:
    """The same samples in slices that are empty or have ``least`` samples, as far as the limits allow.

    Batch normalisation has no statistics of a single sample. A slice that is too small goes to the others, the largest
    first, where they have room; else it is filled up from the largest that can spare so many.

    Args:
        limits: the most of each.
        least: of a slice that is not empty, >= 1.
    """
    cut = list(shares)
    for small in range(len(cut)):
        if not 0 < cut[small] < least:
            continue
        others = [index for index in range(len(cut)) if cut[index] and index != small]
        others.sort(key=lambda index: -cut[index])
        if sum(limits[index] - cut[index] for index in others) >= cut[small]:
            for index in others:
                moved = min(cut[small], limits[index] - cut[index])
                cut[index], cut[small] = cut[index] + moved, cut[small] - moved
        elif limits[small] >= least:
            for index in others:
                moved = max(0, min(least - cut[small], cut[index] - least))
                cut[index], cut[small] = cut[index] - moved, cut[small] + moved
    return tuple(cut)


def scaled(shares: Sequence[int], batch: int, least: int = 1) -> tuple[int, ...]:
    """``shares`` in proportion for a smaller ``batch``; none becomes larger, and they sum to ``batch`` exactly.

    Args:
        shares: samples of each slice of a whole batch.
        batch: samples of the smaller one.
        least: see :func:`without_small_slices`.
    """
    total = sum(shares)
    if not 0 <= batch <= total:
        raise ValueError(f"a batch of {batch} samples is not a part of one of {total}")
    ends = [0]
    for share in shares:
        ends.append(ends[-1] + share)
    # Cut at the same fractions of the batch: the rounding of one cut is made good by the next.
    cuts = [end * batch // total if total else 0 for end in ends]
    return without_small_slices([right - left for left, right in pairwise(cuts)], shares, least)


def step_seconds(shares: Sequence[int], profiles: Sequence[DeviceProfile]) -> float:
    """Predicted compute time of a step: that of the device that ends last."""
    return max(profile.seconds(share) for share, profile in zip(shares, profiles, strict=True))


def fit(points: Sequence[tuple[int, float]], max_batch: int | None = None) -> DeviceProfile:
    """The profile that fits measured ``(samples, seconds)`` points best (least squares of ``t = o + b / s``).

    The median time at each size counts (the lower one of two): a hiccup makes a measurement longer and is none of the
    device's, while other work that stays is met by the steps, too. Where noise gives a line without a slope or with a
    negative fixed cost, the line from the origin to the largest size is taken.

    Raises:
        ValueError: there is no point with a positive size and time.
    """
    measured: dict[int, list[float]] = {}
    for samples, seconds in points:
        if samples > 0 and seconds > 0:
            measured.setdefault(samples, []).append(seconds)
    if not measured:
        raise ValueError("no measurement")
    best = {samples: statistics.median_low(times) for samples, times in measured.items()}
    largest = max(best)
    mean_b, mean_t = sum(best) / len(best), sum(best.values()) / len(best)
    variance = sum((b - mean_b) ** 2 for b in best)
    slope = sum((b - mean_b) * (t - mean_t) for b, t in best.items()) / variance if variance else 0.0
    overhead = mean_t - slope * mean_b
    if slope <= 0 or overhead < 0:
        return DeviceProfile(largest / best[largest], 0.0, max_batch)
    return DeviceProfile(1 / slope, overhead, max_batch)


def least_slice(buffers: Collection[str]) -> int:
    """Samples of the smallest slice of a model with these changing ``buffers``: one sample alone has no statistics."""
    return 2 if buffers else 1
