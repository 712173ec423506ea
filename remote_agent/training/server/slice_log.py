"""Remembers which slices were counted, in memory that does not grow with their number. Pure."""

from __future__ import annotations

import bisect


class SliceLog:
    """A set of slice numbers (from 1), kept as ranges.

    Slices are numbered in the order in which they are issued, and only a few are in progress at any time. So there are
    at most as many gaps as slices in progress, and one range more than gaps.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []  # exclusive

    def __contains__(self, number: int) -> bool:
        position = bisect.bisect_right(self._begins, number) - 1
        return position >= 0 and number < self._ends[position]

    def __len__(self) -> int:
        return len(self._begins)

    @property
    def watermark(self) -> int:
        """All slices from 1 to this one were counted; 0: not even the first."""
        return self._ends[0] - 1 if self._begins and self._begins[0] == 1 else 0

    def add(self, number: int) -> bool:
        """Count a slice; False if it was counted before."""
        if number in self:
            return False
        after = bisect.bisect_right(self._begins, number)
        joins_before = after > 0 and self._ends[after - 1] == number
        joins_after = after < len(self._begins) and self._begins[after] == number + 1
        if joins_before and joins_after:
            self._ends[after - 1] = self._ends.pop(after)
            self._begins.pop(after)
        elif joins_before:
            self._ends[after - 1] = number + 1
        elif joins_after:
            self._begins[after] = number
        else:
            self._begins.insert(after, number)
            self._ends.insert(after, number + 1)
        return True
