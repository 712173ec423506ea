"""A command of the product that follows a run (``train``, ``attach``), read in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import IO, Self, TypeVar

from remote_agent import protocol
from tests.lab.product import HeteroTui

T = TypeVar("T", bound=protocol.Event)

END_S = 30.0
"""Until a command that was killed must be gone."""


class FaultBenchError(RuntimeError):
    """A run did not do what was waited for: what, and what it said last."""


class Follower:
    """The events of a run as a laptop's command prints them; a context manager that kills the command at its end.

    Attributes:
        events: those that have come; only ever appended to.
        lines: as they were printed.
    """

    def __init__(self, product: HeteroTui, *arguments: str) -> None:
        self.events: list[protocol.Event] = []
        self.lines: list[str] = []
        self._came = threading.Condition()
        self._ended = False
        self._said: list[str] = []
        self._process = product.start(*arguments, "--json")
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End the laptop's command with SIGKILL; the run does not notice. Idempotent."""
        self._process.kill()
        self._process.wait(END_S)
        for reader in self._readers:
            reader.join(END_S)

    @property
    def run(self) -> str:
        """The run's name."""
        return self.until(protocol.RunStarted, 0.0).run

    @property
    def head(self) -> str:
        """The host that the run is coordinated on now."""
        where = [one.host for one in self.events if isinstance(one, protocol.RunStarted | protocol.RunResumed)]
        return where[-1]

    @property
    def step(self) -> int:
        """The newest step; 0: none."""
        return next((one.step for one in reversed(self.events) if isinstance(one, protocol.Step)), 0)

    def check(self) -> None:
        """Nothing happens while the run is well.

        Raises:
            FaultBenchError: the run has failed.
        """
        for event in self.events:
            if isinstance(event, protocol.RunFailed):
                raise FaultBenchError(f"the run failed on {event.host} at step {event.step}: {event.cause}")

    def until(
        self, kind: type[T], seconds: float, *, after: int = 0, having: Callable[[T], bool] = lambda _: True
    ) -> T:
        """The first event of a kind from number ``after`` (of :attr:`events`) on, for which ``having`` holds.

        Raises:
            FaultBenchError: it did not come in time, or the command ended.
        """
        deadline = time.monotonic() + seconds
        looked = after
        while True:
            with self._came:
                for event in self.events[looked:]:
                    looked += 1
                    if isinstance(event, kind) and having(event):
                        return event
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    raise FaultBenchError(self._missing(kind.kind, seconds))
                self._came.wait(left)

    def until_step(self, step: int, seconds: float, *, after: int = 0) -> protocol.Step:
        """The first event from number ``after`` on that tells of ``step`` or a later one."""
        return self.until(protocol.Step, seconds, after=after, having=lambda one: one.step >= step)

    def _missing(self, kind: str, seconds: float) -> str:
        ends = "the command ended" if self._ended else f"not within {seconds:.0f} s"
        last = [line[:300] for line in self.lines[-3:]]
        return f"no event {kind!r}: {ends}; last events: {last}; it said: {' / '.join(self._said[-4:])}"

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            event = protocol.decode_event(line)
            with self._came:
                if event is not None:
                    self.events.append(event)
                    self.lines.append(line.rstrip("\n"))
                self._came.notify_all()
        with self._came:
            self._ended = True
            self._came.notify_all()

    def _listen(self, pipe: IO[str]) -> None:
        for line in pipe:
            self._said.append(line.strip())
