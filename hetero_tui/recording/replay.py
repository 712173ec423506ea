"""A recording in the place of the live session: the same states for the same screens, without a network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

from hetero_tui.errors import UsageError
from hetero_tui.intents import Refusing
from hetero_tui.recording.recording import Recording
from hetero_tui.state import State

TICK = 0.1
"""Seconds between two moves of the time that is shown."""

SPEEDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Seconds of the recording that pass in one."""


class Replay(Refusing):
    """A session that can be watched, and changes nothing.

    Attributes:
        position: the time that is shown, in seconds since the epoch: the clock of the screens.
        speed: seconds of the recording that pass in one.
        paused: the time stands still.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.position = recording.begins
        self.speed = SPEEDS[0]
        self.paused = False
        self.jobs: tuple[str, ...] = ()
        self.inventory_path = str(recording.path)
        self._count = 1
        self._state = recording.state_after(1)
        self._listeners: list[Callable[[State], None]] = []

    # --- What is shown -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What was known at :attr:`position`."""
        return self._state

    @property
    def busy(self) -> str:
        """How the time passes; the screens' clock is the recording's."""
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

    # --- Controls ----------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """Have the time pass, until this is cancelled."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            passed, before = time.monotonic() - before, time.monotonic()
            if not self.paused and self.position < self.recording.ends:
                self.seek(self.position + passed * self.speed)

    def toggle(self) -> None:
        """Let the time stand still, or pass again; at the end from the beginning."""
        if self.position >= self.recording.ends:
            self.paused = False
            self.seek(self.recording.begins)
            return
        self.paused = not self.paused
        self._tell()

    def change_speed(self, by: int) -> None:
        """Faster (1) or slower (-1)."""
        place = SPEEDS.index(self.speed) + by
        self.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]
        self._tell()

    def skip(self, part: float) -> None:
        """Forward or back by a part of the whole, such as -0.05."""
        self.seek(self.position + part * (self.recording.ends - self.recording.begins))

    def seek(self, position: float) -> None:
        """Show what was known at that time."""
        recording = self.recording
        self.position = min(max(position, recording.begins), recording.ends)
        count = recording.count_until(self.position)
        if count >= self._count:
            self._state = recording.folded(self._state, self._count, count)
        else:
            self._state = recording.state_after(count)
        self._count = count
        self._tell()

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener(self._state)

    async def close(self) -> None:
        """There is nothing to close."""

    def _refuse(self) -> NoReturn:
        raise UsageError("this is a recording: what it shows can't be changed", step="replay")
