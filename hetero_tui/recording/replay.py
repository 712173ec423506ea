"""Reads a recording, and plays it in the place of the live session: the same screens, without a network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

from hetero_tui.errors import UsageError
from hetero_tui.events import ClusterChanged
from hetero_tui.fold import apply
from hetero_tui.intents import Refusing
from hetero_tui.recording import lines
from hetero_tui.recording.recorder import folder
from hetero_tui.state import State

TICK = 0.1
"""Seconds between two moves of the time that is shown."""

SPEEDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Seconds of the recording that pass in one."""


@dataclass(frozen=True)
class Recording:
    """The events of a session, in their order; see :func:`read`.

    Attributes:
        begins: when, in seconds since the epoch.
        initial: the state before the first event.
        entries: times and events; times never go back, even where the clock was set back.
        cut_off: the session did not end in good order, or goes on.
    """

    path: Path
    begins: float
    initial: State
    entries: tuple[lines.Entry, ...]
    cut_off: bool

    @property
    def has_cluster(self) -> bool:
        """True if the session saw the state of its cluster; one that only attached to a run did not."""
        return any(isinstance(event, ClusterChanged) for _, event in self.entries)

    @property
    def ends(self) -> float:
        """The time of the last entry."""
        return self.entries[-1][0] if self.entries else self.begins


def read(path: Path) -> Recording:
    """Read a recording.

    A last line that is not whole is left out: the app was killed while it wrote, or it is being written.

    Raises:
        UsageError: it can't be read, is no recording, or is damaged; the error names the line.
    """
    path = path if path.exists() else folder() / path
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise _refused(f"{path} can't be read: {error.strerror}") from None
    first, *rest = text.split("\n")
    try:
        begins, initial = lines.beginning(first)
    except lines.NotReadable as error:
        raise _refused(f"{path}: {error}") from None
    entries: list[lines.Entry] = []
    for number, line in enumerate(rest[:-1], start=2):
        try:
            entries.append(lines.entry(line))
        except lines.NotReadable as error:
            hint = "the file was changed; take it anew from the computer that wrote it"
            raise UsageError(f"{path}, line {number}: {error}", step="replay", hint=hint) from None
    ended = bool(entries) and entries[-1][1] is None and not rest[-1]
    times = accumulate((at for at, _ in entries), max, initial=begins)
    next(times)
    ordered = tuple((at, event) for at, (_, event) in zip(times, entries, strict=True))
    return Recording(path=path, begins=begins, initial=initial, entries=ordered, cut_off=not ended)


def newest() -> Path:
    """The newest recording; raises UsageError if there is none."""
    found = sorted(folder().glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not found:
        hint = "the app, and `hetero-tui train` and `attach`, make one each time"
        raise UsageError(f"there is no recording in {folder()}", step="replay", hint=hint)
    return found[-1]


def _refused(cause: str) -> UsageError:
    return UsageError(cause, step="replay", hint=f"recordings lie in {folder()}")


class Replay(Refusing):
    """A session that can be watched, and changes nothing.

    Attributes:
        position: the time that is shown, in seconds since the epoch: the clock of the screens.
        speed: seconds of the recording that pass in one.
        paused: the time stands still.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._state = recording.initial
        self.position = recording.begins
        self.speed = SPEEDS[0]
        self.paused = False
        self.jobs: tuple[str, ...] = ()
        self.inventory_path = str(recording.path)
        self._count = 0
        self._listeners: list[Callable[[State], None]] = []

    @property
    def state(self) -> State:
        """What was known at :attr:`position`."""
        return self._state

    @property
    def busy(self) -> str:
        """How the time passes."""
        if self.position >= self.recording.ends:
            return "end of replay"
        return "replay paused" if self.paused else f"replay ×{self.speed}"

    def now(self) -> float:
        """The clock of the screens: ages are those of that time."""
        return self.position

    def subscribe(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Have ``listener`` called after each change; the answer ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def play(self) -> None:
        """Let the time pass, until this is cancelled."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            passed, before = time.monotonic() - before, time.monotonic()
            if not self.paused and self.position < self.recording.ends:
                self.advance(passed * self.speed)

    def advance(self, seconds: float) -> None:
        """Show what was known so many seconds of the recording later."""
        entries = self.recording.entries
        self.position = min(self.position + seconds, self.recording.ends)
        while self._count < len(entries) and entries[self._count][0] <= self.position:
            event = entries[self._count][1]
            self._count += 1
            if event is not None:
                self._state = apply(self._state, event)
        self._tell()

    def toggle(self) -> None:
        """Let the time stand still, or pass again."""
        self.paused = not self.paused
        self._tell()

    def change_speed(self, by: int) -> None:
        """Faster (1) or slower (-1)."""
        place = SPEEDS.index(self.speed) + by
        self.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]
        self._tell()

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener(self._state)

    async def close(self) -> None:
        """There is nothing to close."""

    def _refuse(self) -> NoReturn:
        raise UsageError("this is a recording: what it shows can't be changed", step="replay")
