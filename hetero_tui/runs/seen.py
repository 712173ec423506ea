"""The events of a run as this laptop has seen them, to give them back to the fleet if the head that wrote them is lost.

The other hosts' copies are a second old; what this laptop was shown must not be numbered anew. Kept in a file without a
name, which goes with the process, so that memory stays flat in long runs.
"""

from __future__ import annotations

import os
import tempfile
from types import TracebackType

from hetero_tui.text import HostText


class Seen:
    """Lines of one run's ``events.jsonl``, without a gap from the first; a context manager."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed by __exit__
        self.last = 0

    def __enter__(self) -> Seen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, line: HostText, seq: int) -> None:
        """Keep the next event; one after a gap (of a kind that this version skips) ends what can be given back."""
        if seq == self.last + 1:
            self._file.seek(0, os.SEEK_END)
            self._file.write(line.raw.encode() + b"\n")
            self.last = seq

    def lines(self, after: int = 0) -> bytes:
        """Those after number ``after``, as they stood in the file."""
        self._file.seek(0)
        for _ in range(min(after, self.last)):
            self._file.readline()
        return self._file.read()

    def same(self, line: HostText, seq: int) -> bool:
        """Whether the event that was seen with this number is this one; asked in the order of the numbers from 1."""
        if seq == 1:
            self._file.seek(0)
        return seq <= self.last and self._file.readline() == line.raw.encode() + b"\n"

    def cut(self, seq: int) -> None:
        """Forget the events after number ``seq``."""
        self._file.seek(0)
        for _ in range(min(seq, self.last)):
            self._file.readline()
        self._file.truncate()
        self.last = min(seq, self.last)
