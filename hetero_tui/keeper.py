"""Keeps the one state that screens and commands show: events are folded into it, and operations exclude each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from hetero_tui import events
from hetero_tui.errors import HeteroTuiError, UsageError
from hetero_tui.events import HostState, Level
from hetero_tui.fold import apply
from hetero_tui.state import State
from remote_agent.states import RunState

Tap = Callable[[events.Event, State, State], None]


class Keeper:
    """The state, who is told of its changes, and what is under way."""

    def __init__(self, state: State, *, log_errors: bool) -> None:
        """``log_errors``: an operation's error becomes a line of the log as well as an exception."""
        self._state = state
        self._log_errors = log_errors
        self._listeners: list[Callable[[State], None]] = []
        self._taps: list[Tap] = []
        self._under_way: list[str] = []
        self._operation = asyncio.Lock()

    @property
    def state(self) -> State:
        """What is known now."""
        return self._state

    @property
    def busy(self) -> str:
        """What is under way, in a word, until all of it has ended: first the operation that excludes the others."""
        return self._under_way[0] if self._under_way else ""

    def subscribe(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Have ``listener`` called after each change; the answer ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tap(self, listener: Tap) -> None:
        """Have ``listener`` called with each event that is folded, and the states before and after it."""
        self._taps.append(listener)

    def emit(self, event: events.Event) -> None:
        """Fold one event into the state and tell the listeners."""
        before, self._state = self._state, apply(self._state, event)
        for tap in self._taps:
            tap(event, before, self._state)
        for listener in tuple(self._listeners):
            listener(self._state)

    def notice(self, level: Level, text: str) -> None:
        """A line for the log."""
        self.emit(events.Notice(time=time.time(), level=level, text=text))

    @contextmanager
    def _working(self, word: str, *, first: bool = False) -> Iterator[None]:
        """Say what is under way; an error becomes a line in the log on its way to the caller.

        Stopping a run and draining a host go on beside other operations, so each takes back its own word alone.
        """
        self._under_way.insert(0 if first else len(self._under_way), word)
        try:
            yield
        except HeteroTuiError as error:
            if self._log_errors:
                self.notice(Level.BAD, str(error))
            raise
        finally:
            self._under_way.remove(word)
            for listener in tuple(self._listeners):
                listener(self._state)

    @asynccontextmanager
    async def _exclusively(self, word: str) -> AsyncIterator[None]:
        """One operation at a time; its word is shown from the first moment, while it waits for another one, too."""
        with self._working(word, first=True):
            async with self._operation:
                yield

    @contextmanager
    def _returning(self, name: str) -> Iterator[None]:
        """A host that is out of the run is shown to come back, unless it can't be asked for."""
        host = self._state.host(name)
        if host is None or host.state not in (HostState.DRAINED, HostState.PAUSED):
            yield
            return
        self.emit(events.HostChanged(time=time.time(), host=name, state=HostState.RETURNING))
        try:
            yield
        except BaseException:
            self.emit(events.HostChanged(time=time.time(), host=name, state=host.state, detail=host.detail))
            raise

    def _refuse_beside_live_run(self, step: str) -> None:
        live = self._state.run
        if live is not None and not live.state.final:
            raise UsageError(f"{live.run} is under way", step=step, hint="stop it first")

    def _is_stopping(self) -> bool:
        return self._state.run is not None and self._state.run.state is RunState.STOPPING
