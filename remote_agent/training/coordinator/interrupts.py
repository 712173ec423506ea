"""Handles Ctrl-C in a script or notebook: the first ends the run after its step, the second at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from types import FrameType
from typing import Any, Self

from remote_agent.protocol import Event, PlanMade, RunResumed, Step
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.errors import Interrupted


class Interrupts:
    """Directs Ctrl-C to the run while the block runs, if the main thread trains.

    Args:
        journal: the run's, which knows its last step.

    Attributes:
        made: the last step that was made; None before the first one has started.
    """

    def __init__(self, journal: Journal) -> None:
        self.made: int | None = None
        self._stopping = False
        journal.listeners.append(self._hear)
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def stopping(self) -> bool:
        """Whether the user wants the run to end."""
        return self._stopping

    def _hear(self, event: Event) -> None:
        if isinstance(event, PlanMade):
            self.made = self.made or 0
        elif isinstance(event, Step | RunResumed):
            self.made = event.step

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._stopping or self.made is None:
            raise Interrupted
        self._stopping = True
        say(f"stopping after step {self.made + 1} or the next, with a checkpoint; Ctrl-C again to end at once")


def say(text: str) -> None:
    """Write a line to stderr; if this is not possible inside another write, it is dropped."""
    with contextlib.suppress(RuntimeError):
        print(f"\n{text}", file=sys.stderr, flush=True)
