"""The head is lost, the coordinator killed, laptops come and go, commands are killed: runs go on, nothing is left.

The tests tell one story in the file's order, on one cluster of three hosts.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from remote_agent import protocol
from remote_agent.training.data import record
from tests.lab.lab import Lab
from tests.lab.machines import Host, HostSpec
from tests.lab.product import HeteroTui, event, only, steps

pytestmark = [pytest.mark.lab, pytest.mark.ray, pytest.mark.timeout(300, method="signal")]

BUDGET_SECONDS = 60.0
"""From the loss of the head to the next step on the others, on a computer that has the time for it."""

SETTINGS = ("batch_size=280", "checkpoint_every=5", "rebalance=false")


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    names = ("mercer", "crosby", "nas")
    with Lab([HostSpec(name=name, simulated_speed=0.5, cpus=1) for name in names], rate_mbit=1000) as lab:
        yield lab


@pytest.fixture(scope="module")
def product(lab: Lab) -> Iterator[HeteroTui]:
    product = HeteroTui(lab.laptop, lab.inventory())
    yield product
    product.run("down", "--yes", "--json")


@pytest.fixture(scope="module")
def budget(product: HeteroTui) -> float:
    """Seconds for a new head: mostly the start of Ray and of torch. Where those are slow, so was the first ``up``."""
    begin = time.monotonic()
    product.document("up")
    return max(BUDGET_SECONDS, 5 * (time.monotonic() - begin))


def test_a_coordinator_that_is_killed_is_started_again_by_the_attached_laptop(
    lab: Lab, product: HeteroTui, budget: float
) -> None:
    with Following.train(product, 60) as following:
        following.until_checkpoints(2)
        (coordinator,) = coordinators(following.head(lab))
        following.head(lab).signal(coordinator, signal.SIGKILL)
        stall = following.until_step_after_resume()
        print(f"the coordinator was killed: the next step comes {stall:.1f} s later")
        following.to_the_end()
    assert_whole(following.seen, 60)
    resumed = only(following.seen, protocol.RunResumed)
    assert [one.step for one in steps(following.seen) if one.seq > resumed.seq] == list(range(resumed.step + 1, 61))


def test_a_head_that_loses_power_is_replaced_and_both_laptops_see_the_whole_history(
    lab: Lab, product: HeteroTui, budget: float
) -> None:
    with Following.train(product, 120) as following:
        following.until_checkpoints(3)
        head = following.head(lab)
        other = Following(product, "attach", following.run, XDG_STATE_HOME=str(lab.folder / "another-laptop"))
        with other, ThreadPoolExecutor(1) as beside:
            other.until_checkpoints(1)
            seen_to_the_end = beside.submit(other.to_the_end)
            head.pull_plug()
            stall = following.until_step_after_resume()
            print(f"the head lost power: the next step comes {stall:.1f} s later")
            following.to_the_end()
            seen_to_the_end.result()
    assert stall <= budget
    assert_whole(following.seen, 120)
    lost, resumed = only(following.seen, protocol.HeadLost), only(following.seen, protocol.RunResumed)
    assert lost.host == head.name
    assert resumed.host != head.name
    assert resumed.step >= 5
    # Where the other laptop was a moment ahead of the one that let the run go on, it is told what became of that.
    assert {one.seq: one for one in other.seen} == {one.seq: one for one in following.seen}
    assert_counted_once(lab.host(resumed.host), following.run)


# --- What the tests do and ask ---------------------------------------------------------------------------------------


class Following:
    """A command that follows a run, with the events that it has printed so far; a context manager."""

    def __init__(self, product: HeteroTui, *arguments: str, **environment: str) -> None:
        self.seen: list[protocol.Event] = []
        self._product = product
        self._process = product.start(*arguments, "--json", **environment)

    @classmethod
    def train(cls, product: HeteroTui, iterations: int) -> Following:
        settings = [part for setting in (f"num_iterations={iterations}", *SETTINGS) for part in ("--set", setting)]
        return cls(product, "train", "digits", *settings)

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    @property
    def run(self) -> str:
        return only(self.seen, protocol.RunStarted).run

    def head(self, lab: Lab) -> Host:
        return lab.host(only(self.seen, protocol.RunStarted).host)

    def next(self) -> protocol.Event:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise AssertionError(f"it ended: {self._process.stderr.read()[-3000:]}")
        self.seen.append(event(line))
        return self.seen[-1]

    def until_checkpoints(self, count: int) -> None:
        while sum(isinstance(one, protocol.CheckpointSaved) for one in self.seen) < count:
            self.next()

    def until_step_after_resume(self) -> float:
        """Seconds until the first step that was made after the run went on."""
        begin = time.monotonic()
        resumed = False
        while not (resumed and isinstance(self.seen[-1], protocol.Step)):
            resumed = isinstance(self.next(), protocol.RunResumed) or resumed
        return time.monotonic() - begin

    def to_the_end(self) -> None:
        while self.next().kind not in protocol.FINAL_KINDS:
            pass
        _, said = self._process.communicate(timeout=30)
        print(said)

    def detach(self) -> None:
        """Kill the laptop's command outright."""
        self._process.kill()
        self._process.communicate()


def coordinators(host: Host) -> list[int]:
    return [one.pid for one in host.processes() if "remote_agent.training.run" in one.argv]


def assert_whole(events: list[protocol.Event], last_step: int) -> None:
    """Every event from the first to the last is there once, and the run came to its end."""
    assert [one.seq for one in events] == list(range(1, len(events) + 1))
    assert only(events, protocol.RunFinished).steps == last_step


def assert_counted_once(host: Host, run: str) -> None:
    """The run's own record says that no sample was left out and none counted twice."""
    path = host.home / ".hetero-tui/lab/runs" / run / record.FILE
    if not path.exists():  # the folder is bound over the user's own
        path = next(host.folder.rglob(f"{run}/{record.FILE}"))
    spans = [span for step in record.read(path).values() for span in step]
    assert record.gaps_and_overlaps(spans, max(span.end for span in spans)) == ()
