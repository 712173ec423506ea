"""How long something of a known size still takes, by how fast it has gone so far."""

from __future__ import annotations

from hetero_tui.text import duration

SOONEST = 2.0
"""Seconds that it has to have gone on: before that its speed is not known."""


class Pace:
    """Of one host's transfer, which began with a part of it there: that part says nothing of the speed."""

    def __init__(self) -> None:
        """Nothing has been seen of it yet."""
        self._first: tuple[float, float] | None = None

    def left(self, done: float, total: float, now: float) -> str:
        """``, about 2 min 5 s left`` after ``done`` of ``total`` at the time ``now``; empty while it is not known."""
        if self._first is None:
            self._first = (done, now)
        before, began = self._first
        if now - began < SOONEST or done <= before or done >= total:
            return ""
        return f", about {duration((total - done) * (now - began) / (done - before))} left"
