"""Writes down what a session folds, so that it can be seen again: every session of the app, and of a followed run.

One file a session in the user's state folder, readable by that user alone. It stays small whatever happens. Live use
that changes nothing else is written every few seconds, and of a file that has grown too large the older half goes: a
whole state stands where the rest begins.
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

FOLDER = "recordings"

MAX_BYTES = 16 << 20
"""Of one file."""

KEPT = 20
"""Recordings that are kept, the newest."""

SAMPLE_EVERY = 5.0
"""Seconds between two samples of a host's use that are written, while nothing else changes with them."""

_STATES_A_FILE = 4


def folder() -> Path:
    """Where recordings lie."""
    return user_state_path("hetero-tui") / FOLDER


class Recorder:
    """Writes one file from the first call of :meth:`begin` until :meth:`close`; calls between add to it.

    Args:
        place: the folder; the user's own if not given.
        complain: is told once where nothing can be written (a full disk, no permission): the session goes on.
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
        self._header = b""
        self._states: list[int] = []  # where whole states begin
        self._size = 0
        self._sampled: dict[str, float] = {}
        self._last: State | None = None
        self._left_out = False
        self.path: Path | None = None

    def begin(self, state: State) -> None:
        """Make the file, with ``state`` to go on from; the oldest files go."""
        moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(self._now()))
        self.path = self._place / f"{state.cluster}-{moment}-{os.getpid()}.jsonl"
        self._header = lines.header(state.cluster)
        try:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = _private(self.path)
            self._write(self._header)
            self._write_state(state)
            self._forget_old()
        except OSError as error:
            self._give_up(error)

    def __call__(self, event: Event, before: State, after: State) -> None:
        """Add an event, which led from one state to the other."""
        if self._file is None:
            return
        now, self._last = self._now(), after
        try:
            self._add(event, before, after, now)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """End the file; idempotent."""
        if self._file is None:
            return
        try:
            if self._last is not None and self._left_out:
                self._write_state(self._last)
            self._write(lines.end_line(self._now()))
        except OSError as error:
            self._give_up(error)
            return
        self._file.close()
        self._file = None

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _add(self, event: Event, before: State, after: State, now: float) -> None:
        if self._is_routine(event, before, after, now):
            self._left_out = True
            return
        if self._size - self._states[-1] > self._max_bytes // _STATES_A_FILE:
            self._write_state(after)
        else:
            self._write(lines.event_line(now, event))
        if self._size > self._max_bytes:
            self._drop_half()

    def _is_routine(self, event: Event, before: State, after: State, now: float) -> bool:
        """Whether it is a sample soon after another one, and nothing changes by it but what is known of the use."""
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

    def _write_state(self, state: State) -> None:
        self._states.append(self._size)
        self._write(lines.state_line(self._now(), state))
        self._left_out = False

    def _drop_half(self) -> None:
        """Begin with the first whole state of the newer half. The file is replaced at once: it is whole always."""
        assert self._file is not None, "begun and not closed"
        assert self.path is not None, "begun"
        start = next((each for each in self._states if each >= self._size // 2), self._states[-1])
        draft = self.path.with_suffix(".part")
        newer = _private(draft)
        with self.path.open("rb") as older:
            older.seek(start)
            newer.write(self._header + older.read())
        draft.replace(self.path)
        self._file.close()
        self._file = newer
        shift = start - len(self._header)
        self._states = [each - shift for each in self._states if each >= start]
        self._size -= shift

    def _forget_old(self) -> None:
        found = sorted(self._place.glob("*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[KEPT:]:
            path.unlink(missing_ok=True)

    def _give_up(self, error: OSError) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file = None
        self._complain(f"this session is not recorded: {self.path}: {error.strerror or error}")


def _private(path: Path) -> BinaryIO:
    """A new file of this user's alone; each line goes to the system at once, so that a crash leaves those before it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)
