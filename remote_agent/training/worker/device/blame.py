"""Finds the sample at which a job's loss fails, so that a user can look at it in the data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

SECONDS = 10.0
"""The search takes no longer: the run has failed, and its user waits."""

OTHERS = 4
"""Other samples of the part that are tried: where all of them fail too, it is no sample's fault."""

SHOWN = 60
"""Characters of a value that are shown."""


def position(error: BaseException, count: int, compute: Callable[[int, int], object]) -> int | None:
    """The position of a sample that fails by itself as the part did, while others do not; None: none is to blame.

    Args:
        error: what the part raised.
        count: of the part's samples.
        compute: the loss of the part's samples from one position to before another.
    """
    until = time.monotonic() + SECONDS

    def fails(begin: int, end: int) -> bool:
        try:
            compute(begin, end)
        except Exception as again:  # noqa: BLE001 - whatever the job's code raises
            return type(again) is type(error)
        return False

    begin, end = 0, count
    while end - begin > 1:
        middle = (begin + end) // 2
        if time.monotonic() > until:
            return None
        if fails(begin, middle):
            end = middle
        elif fails(middle, end):
            begin = middle
        else:
            return None  # only together
    others = [each for each in range(0, count, max(1, count // OTHERS)) if each != begin]
    return begin if any(not fails(each, each + 1) for each in others) else None


def words(index: int, sample: Any) -> str:
    """``sample 17 of the data is to blame, with the target 12``; ``sample`` is a batch of it alone."""
    parts: Any = sample
    if isinstance(sample, Mapping):
        parts = [sample[name] for name in ("labels", "label", "targets", "target") if name in sample]
    value = parts[-1] if isinstance(parts, list | tuple) and len(parts) in (1, 2) else None
    said = f"sample {index} of the data is to blame"
    if isinstance(value, Tensor) and value.numel() <= OTHERS:
        value = value.flatten().tolist()
        said += f", with the target {str(value[0] if len(value) == 1 else value)[:SHOWN]}"
    return said
