"""Notices what another terminal started, a cluster or a run, from the word of a host: whoever looks on looks again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from hetero_tui import deadlines, events
from hetero_tui.fleet.live import cancel
from hetero_tui.state import State
from remote_agent.states import RayState


class Elsewhere:
    """Told of every event that is folded; begins ``look`` where a run, or a cluster, is not on the screen yet.

    Attributes:
        is_wanted: false: nothing is begun, as for a command that does one thing.
    """

    def __init__(self, look: Callable[[], Coroutine[Any, Any, None]], is_busy: Callable[[], bool]) -> None:
        self._look, self._is_busy = look, is_busy
        self.is_wanted = False
        self._looking: asyncio.Task[None] | None = None
        self._ended = float("-inf")  # when the run on the screen was seen to end

    def __call__(self, event: events.Event, before: State, after: State) -> None:
        """Look at an event."""
        shown = after.run
        if shown is not None and shown.state.final and before.run is not shown:
            self._ended = time.monotonic()
        if not isinstance(event, events.HostSampled) or not self.is_wanted or self._is_busy():
            return
        is_new = self._has_new_run(event.sample.run, after) or (
            event.sample.ray is RayState.RUNNING and after.head is None and not after.is_taken_down(event.sample.epoch)
        )
        if not is_new:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="look elsewhere")

    def _has_new_run(self, run: str, state: State) -> bool:
        shown = state.run
        if any(known.id == run and known.script for known in state.runs or ()):
            return False  # a script, or a sweep, is listed and not followed
        if not run or shown is None or (shown.run != run and shown.state.final):
            return bool(run)
        # A coordinator goes on for a moment after its last event; later than that, its run goes on again.
        return shown.state.final and time.monotonic() - self._ended >= deadlines.RUN_RESUMED

    async def close(self) -> None:
        """What was begun ends."""
        task, self._looking = self._looking, None
        if task is not None:
            await cancel(task)
