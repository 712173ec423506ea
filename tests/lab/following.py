"""A command of the product that follows a run (``train``, ``attach``), read in the background, event by event.

For tests and benchmarks that do something to the fleet meanwhile. Their runs are endless until they are stopped: nobody
depends on what a run is done with by the time that he looks. Every wait has a deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import IO, Self, TypeVar

from remote_agent import protocol
from remote_agent.training.data import record
from tests.lab.machines import Host
from tests.lab.product import HeteroTui, only, setting, steps

T = TypeVar("T", bound=protocol.Event)

ENDLESS = 100_000
"""Steps; a test stops the run long before."""

SETTINGS = {"strategy": "sync", "batch_size": 280, "checkpoint_every": 5}

WAIT_S = 600.0
"""Until an event must have come where nothing else is said: a new head takes 100 s on a computer that is drowned."""

END_S = 120.0
"""Until a command that was killed, or has nothing more to follow, must be gone."""


class RunError(RuntimeError):
    """A run did not do what was waited for: what, and what it said last."""


class Following:
    """The command and its events; a context manager, which kills it at the end. The run does not notice.

    Attributes:
        events: those that have come; only ever appended to.
        lines: as they were printed.
    """

    def __init__(self, product: HeteroTui, *arguments: str, **environment: str) -> None:
        self.events: list[protocol.Event] = []
        self.lines: list[str] = []
        self._product = product
        self._begun = time.monotonic()
        self._next = 0
        self._came = threading.Condition()
        self._ended = False
        self._said: list[str] = []
        self._process = product.start(*arguments, "--json", **environment)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @classmethod
    def train(cls, product: HeteroTui, **changed: object) -> Following:
        """An endless run of the job ``digits``, with :data:`SETTINGS` but for those ``changed``."""
        return cls(product, "train", "digits", *setting({"num_iterations": ENDLESS} | SETTINGS | changed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End the laptop's command with SIGKILL. Idempotent."""
        self._process.kill()
        self._process.wait(END_S)
        for reader in self._readers:
            reader.join(END_S)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def run(self) -> str:
        """The run's name."""
        return next(one.run for one in self.events if isinstance(one, protocol.RunStarted))

    @property
    def head(self) -> str:
        """The host that the run is coordinated on now."""
        where = [one.host for one in self.events if isinstance(one, protocol.RunStarted | protocol.RunResumed)]
        return where[-1]

    @property
    def step(self) -> int:
        """The newest step; 0: none."""
        return next((one.step for one in reversed(self.events) if isinstance(one, protocol.Step)), 0)

    @property
    def said(self) -> tuple[str, ...]:
        """What the command has printed for people so far."""
        return tuple(self._said)

    @property
    def pid(self) -> int:
        """The command's process, as this computer counts."""
        return self._process.pid

    def check(self) -> None:
        """Nothing happens while the run is well.

        Raises:
            RunError: the run has failed.
        """
        for event in self.events:
            if isinstance(event, protocol.RunFailed):
                raise RunError(f"the run failed on {event.host} at step {event.step}: {event.cause}")

    def until(
        self,
        kind: type[T],
        seconds: float = WAIT_S,
        *,
        after: int | None = None,
        having: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """The first event of a kind for which ``having`` holds.

        Args:
            kind: the event's class.
            seconds: until it must have come.
            after: look from this number (of :attr:`events`) on; None: from where the last such look ended.
            having: what else must hold.

        Raises:
            RunError: it did not come in time, or the command ended.
        """
        deadline = time.monotonic() + seconds
        looked = self._next if after is None else after
        while True:
            with self._came:
                for event in self.events[looked:]:
                    looked += 1
                    if isinstance(event, kind) and having(event):
                        self._next = looked if after is None else self._next
                        return event
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    raise RunError(self._missing(kind, seconds))
                self._came.wait(left)

    def until_step(self, step: int, seconds: float, *, after: int = 0) -> protocol.Step:
        """The first event from number ``after`` on that tells of ``step`` or a later one."""
        return self.until(protocol.Step, seconds, after=after, having=lambda one: one.step >= step)

    def until_first_step(self) -> float:
        """Seconds from the command to the first step."""
        self.until(protocol.Step)
        return time.monotonic() - self._begun

    def until_checkpoints(self, count: int) -> None:
        """Until so many have been looked at."""
        while sum(isinstance(one, protocol.CheckpointSaved) for one in self.events[: self._next]) < count:
            self.until(protocol.CheckpointSaved)

    def until_copied(self) -> int:
        """Wait until another host than the head has a checkpoint, too; returns its step."""
        return self.until(protocol.CheckpointSaved, having=lambda one: len(one.hosts) > 1).step

    def until_step_after_resume(self) -> float:
        """Seconds until the first step that was made after the run went on."""
        begin = time.monotonic()
        self.until(protocol.RunResumed)
        self.until(protocol.Step)
        return time.monotonic() - begin

    def until_step_with(self, host: Host) -> None:
        """Until ``host`` has done a part of a step."""
        self.until(protocol.Step, having=lambda one: host.name in hosts_of(one))

    def stop(self) -> None:
        """Stop the run as a user would, and read on to its last event."""
        done = self._product.run("stop", self.run)
        assert done.returncode == 0, done.stderr
        self.to_the_end()

    def to_the_end(self) -> None:
        """Until the run has ended, and the command with it."""
        self.until(protocol.Event, having=lambda one: one.kind in protocol.FINAL_KINDS)
        self._process.wait(END_S)
        for reader in self._readers:
            reader.join(END_S)
        print("\n".join(self._said))

    def _missing(self, kind: type[protocol.Event], seconds: float) -> str:
        ends = "the command ended" if self._ended else f"not within {seconds:.0f} s"
        told = [line[:400] for line, one in zip(self.lines, self.events, strict=False) if _tells(one)]
        last = [*told[-6:], *(line[:300] for line in self.lines[-1:])]
        return f"no event {kind.__name__}: {ends}; last events: {last}; it said: {' / '.join(self._said[-4:])}"

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


def hosts_of(step: protocol.Step) -> set[str]:
    """Hosts that did a part of the step."""
    return {worker.host for worker in step.workers}


def assert_whole(events: list[protocol.Event]) -> None:
    """Every event from the first to the last is there once, and the run ended as it was told to, after its last step.

    Steps that were made again after a resume follow the one that the run went on from, without a gap.
    """
    assert [one.seq for one in events] == list(range(1, len(events) + 1))
    finished = only(events, protocol.RunFinished)
    assert (finished.stopped, finished.steps) == (True, steps(events)[-1].step)
    done = 0
    for one in events:
        match one:
            case protocol.RunResumed():
                assert one.step <= done
                done = one.step
            case protocol.Step():
                assert one.step == done + 1
                done = one.step


def assert_counted_once(host: Host, run: str) -> None:
    """The run's own record on its head says that no sample was left out and none counted twice."""
    made = record.read(host.home / ".hetero-tui/lab/runs" / run / record.FILE)
    spans = [span for step in made.values() for span in step]
    assert record.gaps_and_overlaps(spans, max(span.end for span in spans)) == ()


def coordinators(host: Host) -> list[int]:
    """PIDs of a run's overseer and of its child, which coordinates the run, on a host."""
    return sorted(one.pid for one in host.processes() if "remote_agent.coordinate" in one.argv)


def _tells(event: protocol.Event) -> bool:
    """Whether it is one of those that come seldom."""
    return not isinstance(event, protocol.Step | protocol.CheckpointSaved)
