"""Calls the user's callbacks with a run's events, beside training, so that they can't delay or break it.

Callbacks run on the coordinator's host, in one thread, which takes the events from a queue. If they are too slow, some
steps are left out, and the user gets a notice. A callback that raises is reported once and not called again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from remote_agent import protocol
from remote_agent.protocol import Event
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.errors import TrainingError

MAX_WAITING = 1000
"""Events that wait for the callbacks; a step that comes while there are so many is left out."""

ON_END_S = 30.0
"""Until all callbacks must have returned once the run has ended; what is not done then is left."""


class Callback:
    """The methods that a run calls; override some of them, or pass any object that has some of them.

    When steps are repeated, after a fault or a resume, the methods are called for them again.
    """

    def on_start(self, event: protocol.RunStarted | protocol.RunResumed, folder: Path) -> None:
        """Called when the run starts or resumes; ``folder`` is the run's, on the coordinator's host."""

    def on_step(self, event: protocol.Step) -> None:
        """Called after a step; if there are many in a short time, some may be left out."""

    def on_evaluate(self, event: protocol.Evaluated) -> None:
        """Called after an evaluation on the validation data."""

    def on_checkpoint(self, event: protocol.CheckpointSaved) -> None:
        """Called when a checkpoint is complete, and again when other hosts have a copy."""

    def on_end(self, event: protocol.RunFinished | protocol.RunFailed) -> None:
        """Called when the run has ended; the run waits for it no longer than :data:`ON_END_S` (30 s)."""

    def on_event(self, event: Event) -> None:
        """Called for each event in ``events.jsonl``, also for those that have a method of their own."""


_METHODS: dict[type[Event], str] = {
    protocol.Step: "on_step",
    protocol.Evaluated: "on_evaluate",
    protocol.CheckpointSaved: "on_checkpoint",
    protocol.RunFinished: "on_end",
    protocol.RunFailed: "on_end",
}


class Callbacks:
    """Calls the callbacks of one run; a context manager, which waits at its end until they have returned.

    Args:
        host: the coordinator's, for events.
    """

    def __init__(self, callbacks: Sequence[Any], journal: Journal, folder: Path, host: str) -> None:
        self._active, self._journal, self._folder, self._host = list(callbacks), journal, folder, host
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._left_out = self._step = 0
        self._started = self._ended = False
        self._calling = ""
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)

    def __enter__(self) -> Self:
        if self._active:
            self._journal.listeners.append(self._put)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._thread.is_alive():
            return
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(ON_END_S)
        if self._thread.is_alive():
            print(f"{self._calling} did not return within {ON_END_S:g} s; the run ends without it", file=sys.stderr)

    def _put(self, event: Event) -> None:
        """From whichever thread writes an event; waits for nothing."""
        with self._changed:
            if isinstance(event, protocol.Step) and len(self._waiting) >= MAX_WAITING:
                self._left_out += 1
                return
            self._waiting.append(event)
            self._changed.notify()

    def _run(self) -> None:
        told = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    break
                event = self._waiting.popleft()
                left_out = self._left_out
            if left_out and not told:
                told = True
                self._say("the callbacks are slower than training: steps are left out for them")
            self._step = max(self._step, getattr(event, "step", 0))
            calls = self._calls_of(event)
            for callback in list(self._active):
                self._call(callback, calls)

    def _calls_of(self, event: Event) -> list[tuple[str, tuple[Any, ...]]]:
        """The methods that are told of an event, each with its arguments."""
        calls: list[tuple[str, tuple[Any, ...]]] = [("on_event", (event,))]
        if type(event) in _METHODS:
            calls.append((_METHODS[type(event)], (event,)))
        elif isinstance(event, protocol.RunStarted | protocol.RunResumed) and not self._started:
            self._started = True
            calls.insert(0, ("on_start", (event, self._folder)))
        return calls

    def _call(self, callback: Any, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        for name, arguments in calls:
            function: Callable[..., object] | None = getattr(callback, name, None)
            if function is None:
                continue
            self._calling = f"{type(callback).__name__}.{name}"
            try:
                function(*arguments)
            except Exception as error:  # noqa: BLE001 - the user's code can raise anything
                self._active.remove(callback)
                self._say(f"{self._calling} is not called any more: {_last_line(error)}")
                return

    def _say(self, text: str) -> None:
        if self._journal.closed:
            print(text, file=sys.stderr)
            return
        with contextlib.suppress(TrainingError):  # a disk that is full ends the run itself
            self._journal.write(protocol.Notice, step=self._step, host=self._host, text=text)


def _last_line(error: Exception) -> str:
    """The error, and the line of the user's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1] + where
