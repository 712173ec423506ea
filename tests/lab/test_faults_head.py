"""A run's coordinator is killed, hosts join it and leave it, its head is lost and comes back: it goes on.

The tests tell one story in the file's order, on one cluster of three hosts.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_agent import protocol
from tests.lab.following import Following, assert_counted_once, assert_whole, coordinators, hosts_of
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui, only, steps

pytestmark = [pytest.mark.lab, pytest.mark.ray, pytest.mark.timeout(400, method="signal")]

BUDGET_SECONDS = 60.0
"""From the loss of the head to the next step on the others, on a computer that has the time for it."""

NOTICE_SECONDS = 10.0
"""Of these, those that pass until the head counts as lost; they do not depend on the computer."""

BACK_SECONDS = 20.0
"""From a killed coordinator or overseer to the next step: the second takes its libraries' start."""

NAMES = ("mercer", "crosby", "nas")


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    with Lab([HostSpec(name=name, simulated_speed=0.5, cpus=1) for name in NAMES], rate_mbit=1000) as lab:
        yield lab


@pytest.fixture(scope="module")
def product(lab: Lab) -> Iterator[HeteroTui]:
    product = HeteroTui(lab.laptop, lab.inventory())
    yield product
    product.run("down", "--yes", "--json")


@pytest.fixture(scope="module")
def pair(lab: Lab, product: HeteroTui) -> HeteroTui:
    """The product with the first two hosts only in its inventory."""
    return HeteroTui(lab.laptop, lab.inventory(hosts=NAMES[:2]))


@pytest.fixture(scope="module")
def up_seconds(pair: HeteroTui) -> float:
    """What the first ``up`` took, of the pair: how slow this computer is."""
    begin = time.monotonic()
    assert pair.document("up")["cluster"]["state"] == "up"
    return time.monotonic() - begin


@pytest.fixture(scope="module")
def following(product: HeteroTui, up_seconds: float) -> Iterator[Following]:
    """A run that has begun, for the tests of a lost head, with checkpoints by time, as they are by themselves."""
    assert product.document("up")["cluster"]["state"] == "up"
    with Following.train(product, checkpoint_every=0, checkpoint_seconds=8.0) as started:
        yield started


@pytest.fixture(scope="module")
def budget(following: Following, up_seconds: float) -> float:
    """Seconds from the loss of the head to the next step; where this computer has other work, it starts slowly, too."""
    return max(BUDGET_SECONDS, NOTICE_SECONDS + 2 * (up_seconds + following.until_first_step()))


@pytest.mark.long
def test_a_run_goes_on_when_its_coordinator_is_killed_when_a_host_joins_and_when_one_is_drained(
    lab: Lab, pair: HeteroTui, product: HeteroTui, up_seconds: float
) -> None:
    with Following.train(pair) as following:
        following.until_checkpoints(2)
        following.until_copied()
        head, new = lab.host(following.head), lab.host(NAMES[2])
        events = [lab.host(name).home / f".hetero-tui/lab/runs/{following.run}/events.jsonl" for name in NAMES[:2]]
        copies = {path: path.stat() for path in events}
        for killed in ("the coordinator", "its overseer"):
            overseer, coordinator = coordinators(head)
            head.signal(coordinator if killed == "the coordinator" else overseer, signal.SIGKILL)
            stall = following.until_step_after_resume()
            print(f"{killed} was killed: the next step comes {stall:.1f} s later")
            assert stall <= max(BACK_SECONDS, 2 * up_seconds), killed
        assert product.document("up")["cluster"]["state"] == "up"
        following.until_step_with(new)
        (leaver,) = [host for host in lab.hosts if host not in (head, new)]
        drained = product.document("drain", leaver.name)
        assert (drained["run"], drained["host"]) == (following.run, leaver.name)
        assert leaver.name in drained["said"]
        following.until(protocol.WorkerLost, having=lambda one: one.host == leaver.name)
        following.until(protocol.Step)
        for path, before in copies.items():
            assert path.stat().st_ino == before.st_ino, "a copy from before is continued, not sent anew"
            assert path.stat().st_size > before.st_size
        following.stop()
    assert_whole(following.events)
    resumed = [one for one in following.events if isinstance(one, protocol.RunResumed)]
    assert [one.checkpoint for one in resumed] == ["", ""], "workers and servers were taken over"
    assert {one.host for one in steps(following.events)[0].workers} == set(NAMES[:2])
    (lost,) = [one for one in following.events if isinstance(one, protocol.WorkerLost) and one.host == leaver.name]
    assert "drained" in lost.cause
    assert leaver.name not in hosts_of(steps(following.events)[-1])
    assert_counted_once(head, following.run)


def test_a_head_that_loses_power_is_replaced_is_a_worker_once_it_is_back_and_both_laptops_see_all_of_it(
    lab: Lab, product: HeteroTui, following: Following, budget: float
) -> None:
    following.until_copied()
    head = lab.host(following.head)
    other = Following(product, "attach", following.run, XDG_STATE_HOME=str(lab.folder / "another-laptop"))
    with other:
        other.until_checkpoints(1)
        head.pull_plug()
        stall = following.until_step_after_resume()
        print(f"the head lost power: the next step comes {stall:.1f} s later")
        head.boot()
        following.until_step_with(head)
        status = product.document("status")
        last = following.until(protocol.Step).seq
        other.until(protocol.Event, after=0, having=lambda one: one.seq >= last)
    assert stall <= budget
    lost, resumed = only(following.events, protocol.HeadLost), only(following.events, protocol.RunResumed)
    assert lost.host == head.name
    assert resumed.host != head.name
    assert resumed.step >= 5
    assert status["cluster"] == {"state": "up", "head": resumed.host}
    # Where the other laptop was a moment ahead of the one that let the run go on, it is told what became of that.
    assert up_to(last, other.events) == up_to(last, following.events)


@pytest.mark.long
def test_a_run_whose_head_was_cut_off_goes_on_by_resume_and_the_old_head_gives_way(
    lab: Lab, product: HeteroTui, following: Following, budget: float
) -> None:
    following.until_copied()
    following.kill()
    head = lab.host(following.head)
    head.cut()
    try:
        begin = time.monotonic()
        with Following(product, "resume", following.run) as resumed:
            now = resumed.until(protocol.RunResumed, having=lambda one: one.host != head.name).host
            resumed.until(protocol.Step)
            stall = time.monotonic() - begin
            print(f"the head was cut off: the next step comes {stall:.1f} s after `resume`")
            assert coordinators(head), "the old head goes on alone"
            head.mend()
            resumed.until_step_with(head)
            assert coordinators(head) == []
            assert not [one for one in head.processes() if Path(one.argv[0]).name == "gcs_server"]
            assert product.document("status")["cluster"] == {"state": "up", "head": now}
            resumed.stop()
    finally:
        head.mend()
    assert stall <= budget
    assert_whole(resumed.events)
    lost = [one.host for one in resumed.events if isinstance(one, protocol.HeadLost)]
    assert lost == [only(following.events, protocol.HeadLost).host, head.name]
    (listed,) = [one for one in product.document("runs")["runs"] if one["id"] == following.run]
    assert (listed["state"], listed["host"]) == ("stopped", now)
    assert_counted_once(lab.host(now), following.run)


def up_to(seq: int, events: list[protocol.Event]) -> dict[int, protocol.Event]:
    """The newest event of each number."""
    return {one.seq: one for one in events if one.seq <= seq}
