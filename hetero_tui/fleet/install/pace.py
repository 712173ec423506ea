"""Estimates the remaining time of a transfer of known size from its speed so far."""

from __future__ import annotations

from hetero_tui.text import duration

SOONEST = 2.0
"""Seconds after which the speed of a transfer is known."""


class Pace:
    """The speed of one host's transfer, without the part that was there at the start."""

    def __init__(self) -> None:
        """Nothing has been seen of it yet."""
        self._first: tuple[float, float] | None = None

    def left(self, done: float, total: float, now: float) -> str:
        """``, about 2 min 5 s left`` after ``done`` of ``total`` at the time ``now``; empty: unknown."""
        if self._first is None:
            self._first = (done, now)
        before, began = self._first
        if now - began < SOONEST or done <= before or done >= total:
            return ""
        return f", about {duration((total - done) * (now - began) / (done - before))} left"
