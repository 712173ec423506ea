"""A command of the product that follows a run, read event by event, for tests that do something to the fleet meanwhile.

The runs are endless until they are stopped: no test depends on what a run is done with by the time that it looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from remote_agent import protocol
from remote_agent.training.data import record
from tests.lab.lab import Lab
from tests.lab.machines import Host
from tests.lab.product import HeteroTui, event, only, steps

ENDLESS = 100_000
"""Steps; a test stops the run long before."""

SETTINGS = ("batch_size=280", "checkpoint_every=5", "rebalance=false")


class Following:
    """The command, with the events that it has printed so far; a context manager, which kills it at the end."""

    def __init__(self, product: HeteroTui, *arguments: str, **environment: str) -> None:
        self.seen: list[protocol.Event] = []
        self._product = product
        self._begun = time.monotonic()
        self._process = product.start(*arguments, "--json", **environment)
        assert self._process.stderr is not None
        self._reader = ThreadPoolExecutor(1)
        self._said = self._reader.submit(self._process.stderr.read)  # or the command would wait for a full pipe

    @classmethod
    def train(cls, product: HeteroTui) -> Following:
        settings = [part for setting in (f"num_iterations={ENDLESS}", *SETTINGS) for part in ("--set", setting)]
        return cls(product, "train", "digits", *settings)

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    @property
    def run(self) -> str:
        return only(self.seen, protocol.RunStarted).run

    def head(self, lab: Lab) -> Host:
        """Where the run began."""
        return lab.host(only(self.seen, protocol.RunStarted).host)

    def next(self) -> protocol.Event:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"it ended: {self._said.result()[-3000:]}")
        self.seen.append(event(line))
        return self.seen[-1]

    def until(self, wanted: Callable[[protocol.Event], bool]) -> float:
        """Seconds until the next event that is ``wanted``."""
        begin = time.monotonic()
        while not wanted(self.next()):
            pass
        return time.monotonic() - begin

    def until_first_step(self) -> float:
        """Seconds from the command to the first step."""
        self.until(is_step)
        return time.monotonic() - self._begun

    def until_checkpoints(self, count: int) -> None:
        while sum(isinstance(one, protocol.CheckpointSaved) for one in self.seen) < count:
            self.next()

    def until_copied(self) -> None:
        """Until another host than the head has a checkpoint, too."""
        self.until(lambda one: isinstance(one, protocol.CheckpointSaved) and len(one.hosts) > 1)

    def until_step_after_resume(self) -> float:
        """Seconds until the first step that was made after the run went on."""
        begin = time.monotonic()
        self.until(lambda one: isinstance(one, protocol.RunResumed))
        self.until(is_step)
        return time.monotonic() - begin

    def until_step_with(self, host: Host) -> None:
        """Until ``host`` has done a part of a step."""
        self.until(lambda one: isinstance(one, protocol.Step) and host.name in hosts_of(one))

    def stop(self) -> None:
        """Stop the run as a user would, and read on to its last event."""
        done = self._product.run("stop", self.run)
        assert done.returncode == 0, done.stderr
        self.to_the_end()

    def to_the_end(self) -> None:
        self.until(lambda one: one.kind in protocol.FINAL_KINDS)
        self._process.wait(60)
        print(self._said.result())

    def detach(self) -> None:
        """Kill the laptop's command outright."""
        self._process.kill()
        self._process.wait()
        self._reader.shutdown()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


def is_step(one: protocol.Event) -> bool:
    return isinstance(one, protocol.Step)


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
    """PIDs of the runs' coordinators on a host."""
    return [one.pid for one in host.processes() if "remote_agent.training.run" in one.argv]
