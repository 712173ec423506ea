"""The newest events of a run as this laptop has seen them, to give them back to the fleet if their head is lost.

The other hosts' copies are a second old; what this laptop was shown must not be numbered anew.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from hetero_tui.text import HostText

KEPT = 2000
"""Lines that are kept: what is older has been copied to the other hosts long before."""


class Seen:
    """The last lines of one run's ``events.jsonl``, without a gap from the one after number :attr:`first`."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT)
        self.last = 0

    @property
    def first(self) -> int:
        """The number before that of the first line that is kept."""
        return self.last - len(self._lines)

    def add(self, line: HostText, seq: int) -> None:
        """Keep the next event; after a gap (a kind that this version skips, a history in few steps) it is the first."""
        if seq > self.last + 1:
            self._lines.clear()
        if seq > self.last:
            self._lines.append(line.raw)
            self.last = seq

    def lines(self, after: int = 0) -> bytes:
        """Those after number ``after``, as they stood in the file; none where there is a gap between."""
        if after < self.first:
            return b""
        return "".join(f"{line}\n" for line in islice(self._lines, after - self.first, None)).encode()

    def same(self, line: HostText, seq: int) -> bool:
        """Whether the event that was seen with this number is this one; what is older than those kept counts as it."""
        return seq <= self.first or (seq <= self.last and self._lines[seq - self.first - 1] == line.raw)

    def cut(self, seq: int) -> None:
        """Forget the events after number ``seq``."""
        while self._lines and self.last > seq:
            self._lines.pop()
            self.last -= 1
