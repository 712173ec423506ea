"""Units: samples of a step that one device always computes together, whatever the cut. Pure.

What a loss or a model does with the samples around a sample (batch normalisation, contrastive losses, padding to the
longest), and random numbers, depend on which samples are together. With units that is decided by the batch alone: a
batch of ``n`` samples is ``ceil(n / unit)`` units, as equal as possible, and a slice is whole units. To normalise
over such groups is known as ghost batch normalisation; see Hoffer, Hubara, Soudry, "Train longer, generalize better"
(NeurIPS 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

BATCH_STATISTICS = 32
"""Samples of the smallest unit for batch normalisation: statistics of fewer are too noisy to normalise by."""

LEAST = 8
"""Samples of the smallest unit that is chosen for anything else."""

UNITS = 10
"""Most units of a batch where their size is not set: two for each of five devices, and the same on one machine."""


def default_unit(batch: int, least: int = BATCH_STATISTICS) -> int:
    """Return the samples of a unit, where units are needed and their size is not set; it depends on the batch alone."""
    return min(batch, max(least, -(-batch // UNITS)))


def bounds(samples: int, unit: int) -> list[int]:
    """Where the units of a batch begin, and the last one ends: ``[0, ..., samples]``; earlier ones are the larger."""
    count = max(1, -(-samples // unit))
    size, more = divmod(samples, count)
    return [0, *accumulate(size + (number < more) for number in range(count))]


def aligned(cut: Sequence[int], unit: int) -> tuple[int, ...]:
    """``cut`` in whole units: samples of each device, with the same sum and as near to ``cut`` as whole units allow.

    Each device gets the units that its share is, rounded down; what is left goes to those that are owed most.
    """
    total = sum(cut)
    if not total:
        return tuple(cut)
    ends = bounds(total, unit)
    count = len(ends) - 1
    wanted = [samples * count / total for samples in cut]
    given = [int(share) for share in wanted]
    owed = sorted(range(len(cut)), key=lambda each: (given[each] - wanted[each], -cut[each]))
    for each in owed[: count - sum(given)]:
        given[each] += 1
    places = [0, *accumulate(given)]
    return tuple(ends[right] - ends[left] for left, right in pairwise(places))
