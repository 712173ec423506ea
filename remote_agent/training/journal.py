"""``events.jsonl``: the run's single source of truth, one protocol event a line, numbered from 1 without gaps."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

from remote_agent import reopening
from remote_agent.protocol import FINAL_KINDS, Event, ProtocolError, encode
from remote_agent.training.errors import StorageError


class Journal:
    """Appends events to a file, from any thread. After the first final event nothing more is written.

    A file that is there is continued: its numbers go on, and a final event in it is taken back (``reopening``).

    Attributes:
        path: the file.
        continued: whether it has events from before.
        ended: how the run in it had ended, in words; empty when it had not, or there was none.
        step: the last step that it told of when it was opened; 0: none.
        closed: a final event was written.

    Raises:
        StorageError: the file can't be written, or it is no file of events.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = False
        self._lock = threading.Lock()
        try:
            self._file = path.open("ab", buffering=0)
            found = reopening.reopen(path)
        except OSError as error:
            raise _storage(path, error) from error
        except ProtocolError as error:
            raise StorageError(f"{path} is no file of events: {error}", hint="choose another folder") from error
        self.continued, self.ended, self.step = found.seq > 0, found.ended, found.step
        self._next, self._whole = found.seq + 1, found.size

    def write(self, kind: type[Event], **fields: Any) -> None:
        """Number, stamp and append one event.

        Raises:
            StorageError: it can't be written; what was written of the line is taken back.
        """
        with self._lock:
            self._write(kind, fields)

    def _write(self, kind: type[Event], fields: dict[str, Any]) -> None:
        if self.closed:
            return
        line = encode(kind(seq=self._next, time=time.time(), **fields)).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError("no space left on device")
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._whole)
            raise _storage(self.path, error) from error
        self._whole += len(line)
        self._next += 1
        self.closed = kind.kind in FINAL_KINDS

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _storage(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"can't write {path.name}: {error.strerror or error}", hint=f"free space or correct the rights of {path.parent}"
    )
