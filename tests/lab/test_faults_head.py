"""A run's head is lost and comes back: the run goes on.

The tests tell one story in the file's order, on one cluster of three hosts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_agent import protocol
from tests.lab.following import Following, assert_counted_once, assert_whole, coordinators
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui, only

pytestmark = [pytest.mark.lab, pytest.mark.ray]

BUDGET_SECONDS = 60.0
"""From the loss of the head to the next step on the others, on a computer that has the time for it."""

NOTICE_SECONDS = 10.0
"""Of these, those that pass until the head counts as lost; they do not depend on the computer."""

NAMES = ("mercer", "crosby", "nas")


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    with Lab([HostSpec(name=name, simulated_speed=0.15, cpus=1) for name in NAMES], rate_mbit=1000) as lab:
        yield lab


@pytest.fixture(scope="module")
def up_seconds(product: HeteroTui) -> float:
    """What ``up`` took: how slow this computer is."""
    begin = time.monotonic()
    assert product.document("up")["cluster"]["state"] == "up"
    return time.monotonic() - begin


@pytest.fixture(scope="module")
def following(product: HeteroTui, up_seconds: float) -> Iterator[Following]:
    """A run that has begun, with checkpoints by time, as they are by themselves."""
    with Following.train(product, checkpoint_every=0, checkpoint_seconds=8.0) as started:
        yield started


@pytest.fixture(scope="module")
def budget(following: Following, up_seconds: float) -> float:
    """Seconds from the loss of the head to the next step; where this computer has other work, it starts slowly, too."""
    return max(BUDGET_SECONDS, NOTICE_SECONDS + 2 * (up_seconds + following.until_first_step()))


def test_a_head_that_loses_power_is_replaced_is_a_worker_once_it_is_back_and_both_laptops_see_all_of_it(
    lab: Lab, product: HeteroTui, following: Following, budget: float
) -> None:
    copied = following.until_copied()
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
    assert resumed.step >= copied
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
