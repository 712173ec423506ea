"""A stream of lines to a laptop that may vanish: nothing of ours may go on running on a machine that no laptop watches.

A vanished laptop shows in one of four ways: stdout no longer takes lines, stdin ends, the process that started this
one is gone, or stdin is silent. The caller keeps stdin open for as long as it wants lines (an SSH channel does so by
itself). One that has sent a sign of life there goes on sending them: a connection whose address is gone ends only after
a quarter of an hour.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Sequence

from remote_agent import deadlines
from remote_agent.protocol import READER_SILENT

_STDIN = 0
_STDOUT = 1


class StreamClosed(Exception):
    """The reader of the lines is gone."""


class LineStream:
    """Writes lines to stdout, and waits in such a way that the reader's end is noticed at once."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._last_write = time.monotonic()
        self._heard: float | None = None
        mode = os.fstat(_STDIN).st_mode
        # A terminal, a file or /dev/null says nothing about a reader: only a pipe or a socket is watched.
        self._watched = [_STDIN] if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else []

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines (each with its newline) and flush them; raises StreamClosed if the reader is gone."""
        try:
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()
        except (BrokenPipeError, ConnectionResetError):
            _drop_stdout()
            raise StreamClosed from None
        self._last_write = time.monotonic()

    def wait(self, seconds: float) -> None:
        """Wait so long; raises StreamClosed as soon as the reader goes."""
        ends = time.monotonic() + seconds
        while select.select(self._watched, [], [], max(0.0, ends - time.monotonic()))[0]:
            if not os.read(_STDIN, 4096):
                raise StreamClosed
            self._heard = time.monotonic()
        if self._heard is not None and time.monotonic() - self._heard > deadlines.READER_SILENCE_SECONDS:
            sys.exit(READER_SILENT)  # a reader that only slept opens a new stream
        if os.getppid() != self._parent:
            raise StreamClosed

    def heartbeat(self, silence: float) -> None:
        """Write an empty line if nothing was written for ``silence`` seconds; raises as :meth:`write`."""
        if time.monotonic() - self._last_write >= silence:
            self.write([b"\n"])


def _drop_stdout() -> None:
    """Point stdout to nowhere, so that Python's own flush at exit does not complain about the closed one."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
