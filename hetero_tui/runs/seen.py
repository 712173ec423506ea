"""The events of a run as this laptop has seen them, to give them back to the fleet if the head that wrote them is lost.

The other hosts' copies are a second old; what this laptop was shown must not be numbered anew. Kept in a file without a
name, which goes with the process, so that memory stays flat in long runs.
"""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import IO

from hetero_tui.text import HostText


class Seen:
    """Lines of one run's ``events.jsonl``, without a gap from the one after :attr:`first`; a context manager.

    Of a run that had gone on for long when it was attached to, they begin where the laptop had caught up with it: what
    is older has been copied to the other hosts long before. So they begin anew where this computer's disk was full.
    """

    def __init__(self) -> None:
        self._file = _file()
        self.first = self.last = 0
        self._read: int | None = None  # the number of the line that was read last; None: something else was done

    def __enter__(self) -> Seen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        with suppress(OSError):  # there is no room for what it was to write
            self._file.close()

    def begin(self, seq: int) -> None:
        """Keep the events from number ``seq`` on, where none is kept yet."""
        if self.first == self.last:
            self.first = self.last = seq - 1

    def add(self, line: HostText, seq: int) -> None:
        """Keep the next event; one after a gap (of a kind that this version skips) ends what can be given back."""
        if seq == self.last + 1:
            self._read = None
            self.last = seq
            try:
                self._file.seek(0, os.SEEK_END)
                self._file.write(line.raw.encode() + b"\n")
                self._file.flush()
            except OSError:
                self._close()
                self._file, self.first = _file(), seq

    def lines(self, after: int = 0) -> bytes:
        """Those after number ``after``, as they stood in the file; none where there is a gap between."""
        if after < self.first:
            return b""
        self._skip_to(after)
        self._read = None
        return self._file.read()

    def same(self, line: HostText, seq: int) -> bool:
        """Whether the event that was seen with this number is this one; quick where asked in the order of the numbers.

        What is older than the first one that is kept counts as the same.
        """
        if seq <= self.first:
            return True
        self._skip_to(seq - 1)
        if seq > self.last:
            return False
        self._read = seq
        return self._file.readline() == line.raw.encode() + b"\n"

    def cut(self, seq: int) -> None:
        """Forget the events after number ``seq``."""
        self._skip_to(seq)
        self._file.truncate()
        self.last = max(self.first, min(seq, self.last))

    def _skip_to(self, seq: int) -> None:
        """Have what follows number ``seq`` read next."""
        if self._read is None or self._read > seq:
            self._file.seek(0)
            self._read = self.first
        while self._read < min(seq, self.last):
            self._file.readline()
            self._read += 1


def _file() -> IO[bytes]:
    """One without a name, or one in memory where none can be made."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return io.BytesIO()
