"""Keeps the state that screens and commands show, folds events into it, and makes operations exclude each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from hetero_tui import events
from hetero_tui.errors import HeteroTuiError, TakenDown, UsageError
from hetero_tui.events import Level
from hetero_tui.fold import apply
from hetero_tui.intents import ASKING
from hetero_tui.state import State
from remote_agent.states import RunState

STOPPING = "stopping"
"""The word of a teardown."""

Tap = Callable[[events.Event, State, State], None]


class Keeper:
    """Keeps the state, its listeners, and the names of running operations."""

    def __init__(self, state: State, *, log_errors: bool) -> None:
        """``log_errors``: an operation's error is also a line of the log."""
        self._state = state
        self._log_errors = log_errors
        self._listeners: list[Callable[[State], None]] = []
        self._taps: list[Tap] = []
        self._under_way: list[str] = []
        self._operation = asyncio.Lock()
        self._holder: asyncio.Task[object] | None = None
        self._ended: asyncio.Task[object] | None = None

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    @property
    def busy(self) -> str:
        """The name of the running operation; first that of the one that excludes the others."""
        return self._under_way[0] if self._under_way else ""

    def subscribe(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Call ``listener`` after each change; returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tap(self, listener: Tap) -> None:
        """Call ``listener`` with each folded event, and the states before and after it."""
        self._taps.append(listener)

    def emit(self, event: events.Event) -> None:
        """Fold one event into the state and tell the listeners."""
        before, self._state = self._state, apply(self._state, event)
        for tap in self._taps:
            tap(event, before, self._state)
        for listener in tuple(self._listeners):
            listener(self._state)

    def notice(self, level: Level, text: str) -> None:
        """Write a line to the log."""
        self.emit(events.Notice(level=level, text=text))

    @contextmanager
    def _working(self, word: str, *, first: bool = False) -> Iterator[None]:
        """Show the name of an operation while it runs; an error is also written to the log.

        Stopping a run and draining a host run beside other operations, so each removes only its own name.
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
        """Run one operation at a time; its name is shown at once, also while it waits for another one.

        A question, which the screen asks by itself, does not hide the operation that it waits for, and nothing hides a
        teardown: what follows a run wants to resume it when its coordinator ends with the cluster. A teardown ends what
        is under way, since it would undo the work of that anyway.

        Raises:
            TakenDown: a teardown ended this operation.
        """
        if word == STOPPING and self._holder is not None and self.busy != ASKING:
            self.notice(Level.INFO, f"the teardown ends this first: {self.busy}")
            self._ended = self._holder
            self._holder.cancel()
        with self._working(word, first=word != ASKING and STOPPING not in self._under_way):
            async with self._operation:
                if word not in (STOPPING, ASKING) and STOPPING in self._under_way:  # it came before the teardown
                    raise TakenDown(f"the teardown ended this: {word}", step="down")
                self._holder = this = asyncio.current_task()
                try:
                    yield
                except asyncio.CancelledError:
                    if this is None or self._ended is not this:
                        raise
                    this.uncancel()
                    raise TakenDown(f"the teardown ended this: {word}", step="down") from None
                finally:
                    self._holder = self._ended = None

    def _refuse_beside_live_run(self, step: str) -> None:
        live = self._state.run
        if live is not None and not live.state.final:
            raise UsageError(f"{live.run} is under way", step=step, hint="stop it first")

    def _is_stopping(self) -> bool:
        return self._state.run is not None and self._state.run.state is RunState.STOPPING
