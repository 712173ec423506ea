"""Writes down the events of a session, for `hetero-tui replay`.

One file a session in the user's state folder, readable by that user alone. Samples of a host's use that change nothing
else are written every few seconds. A full file ends the recording, not the session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from platformdirs import user_state_path

from hetero_tui.events import Event, HostSampled
from hetero_tui.recording import lines
from hetero_tui.state import State

MAX_BYTES = 32 << 20
"""Of one file."""

KEPT = 10
"""Recordings that are kept, the newest."""

SAMPLE_EVERY = 5.0
"""Seconds between two samples of a host's use that are written, while nothing else changes with them."""


def folder() -> Path:
    """The folder of recordings."""
    return user_state_path("hetero-tui") / "recordings"


class Recorder:
    """Writes one file from :meth:`begin` until :meth:`close`; each call between adds an event.

    Args:
        place: the folder; the user's own if not given.
        complain: called once if nothing can be written any more; the session goes on.
        now: the clock, in seconds since the epoch.
        max_bytes: of the file.
    """

    def __init__(
        self,
        place: Path | None = None,
        *,
        complain: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.time,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._place = place if place is not None else folder()
        self._complain, self._now, self._max_bytes = complain, now, max_bytes
        self._file: BinaryIO | None = None
        self._size = 0
        self._sampled: dict[str, float] = {}
        self.path: Path | None = None

    def begin(self, state: State) -> None:
        """Make the file, with the hosts of ``state``; the oldest files go."""
        moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(self._now()))
        self.path = self._place / f"{state.cluster}-{moment}-{os.getpid()}.jsonl"
        try:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = _private(self.path)
            self._write(lines.header(self._now(), state))
            found = sorted(self._place.glob("*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in found[KEPT:]:
                path.unlink(missing_ok=True)
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def __call__(self, event: Event, before: State, after: State) -> None:
        """Add an event, which led from one state to the other."""
        now = self._now()
        if self._file is None or self._is_routine(event, before, after, now):
            return
        try:
            self._write(lines.event_line(now, event))
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return
        if self._size > self._max_bytes:
            self._give_up(f"it has {self._max_bytes >> 20} MiB")

    def close(self) -> None:
        """End the file; idempotent."""
        if self._file is None:
            return
        try:
            self._write(lines.end_line(self._now()))
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return
        self._file.close()
        self._file = None

    def _is_routine(self, event: Event, before: State, after: State, now: float) -> bool:
        """True for a sample soon after another one that changes nothing but the host's use."""
        if not isinstance(event, HostSampled):
            return False
        was, is_now = before.host(event.host), after.host(event.host)
        same = before.log is after.log and (before.cluster_state, before.epoch) == (after.cluster_state, after.epoch)
        if was is None or is_now is None or (same and was.state is is_now.state):
            if now - self._sampled.get(event.host, 0.0) < SAMPLE_EVERY:
                return True
            self._sampled[event.host] = now
        return False

    def _write(self, line: bytes) -> None:
        assert self._file is not None, "begun and not closed"
        self._file.write(line)
        self._size += len(line)

    def _give_up(self, cause: str) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None
        self._complain(f"this session is not recorded any further: {self.path}: {cause}")


def _private(path: Path) -> BinaryIO:
    """A new file of this user's alone; each line goes to the system at once, so that a crash leaves those before it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)
