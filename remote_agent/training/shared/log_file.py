"""A process's log in the run's folder on its own host: lines with UTC times, in a file that does not grow for ever.

Coordinator, workers and servers have one each. What is printed there and what is logged comes here by way of
``shared.output``; ``hetero-tui logs`` merges all of a run.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from remote_agent.log_lines import stamp
from remote_agent.protocol import CLUSTER_MARK

MAX_BYTES = 4 << 20
"""Of a file; a full one is kept as ``NAME.log.1`` until the next is full."""

_STREAMS = (1, 2)


def place(run: str, process: str) -> Path | None:
    """Where a process of ``run`` has its log; None: it belongs to no cluster of ours, or ``run`` is empty."""
    folder = os.environ.get(CLUSTER_MARK)
    return Path(folder) / "runs" / run / f"{process}.log" if folder and run else None


class LogFile:
    """Appends lines to a file; what can't be written is gone without.

    No lock is held while a line is written: a process may fork at any time, and its child prints here, too.

    Args:
        path: of the file; it is continued.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._file = self._open()
        status = os.fstat(self._file)
        self._size, self._rotating = status.st_size, threading.Lock()
        # The coordinator is started with this file as stdout and stderr.
        self._streams = [stream for stream in _STREAMS if os.path.samestat(os.fstat(stream), status)]

    def write(self, line: str) -> None:
        """Append a line with the time."""
        with contextlib.suppress(OSError):
            self._size += os.write(self._file, f"{stamp(time.time())} {line}\n".encode("utf-8", "replace"))
            if self._size > MAX_BYTES and self._rotating.acquire(blocking=False):
                try:
                    self._rotate()
                finally:
                    self._rotating.release()

    def has(self, stream: int) -> bool:
        """Whether what this process writes to that descriptor (1 or 2) goes to this file anyway."""
        return stream in self._streams

    def _rotate(self) -> None:
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        new = self._open()
        for descriptor in (self._file, *self._streams):
            os.dup2(new, descriptor, inheritable=descriptor in _STREAMS)
        os.close(new)
        self._size = 0

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
