"""Clocks of several machines on one timeline, without a clock protocol.

Each process stamps with its own ``time.monotonic()``. A call's stamps bound the offset between the two clocks: it was
entered after the coordinator submitted it, and it was left before the coordinator saw the answer (Cristian, 1989). The
bounds are applied anew with each call, so that drift over a long run is taken out as it appears.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ClockOffset:
    """Offset of another process's monotonic clock against the coordinator's, in seconds."""

    offset: float | None = None

    def bound(self, submitted: float, entered: float, left: float, seen: float) -> None:
        """Learn from one call: ``submitted`` and ``seen`` on our clock, ``entered`` and ``left`` on the other."""
        low, high = left - seen, entered - submitted
        if self.offset is None:
            # Processes of one computer share the clock: zero when it is possible, else the middle.
            self.offset = 0.0 if low <= 0.0 <= high else (low + high) / 2
        self.offset = min(max(self.offset, low), high)

    def here(self, stamp: float) -> float:
        """The other process's ``stamp`` on the coordinator's clock."""
        return stamp - (self.offset or 0.0)
