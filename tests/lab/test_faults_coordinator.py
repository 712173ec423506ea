"""A run's coordinator is killed or stopped, a host joins the run and another one leaves it: it goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from remote_agent import protocol
from tests.lab.following import Following, assert_counted_once, assert_whole, coordinators, hosts_of
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui, steps

pytestmark = [pytest.mark.lab, pytest.mark.ray, pytest.mark.long]

BACK_SECONDS = 20.0
"""From a killed coordinator or overseer to the next step: the second takes its libraries' start."""

NAMES = ("mercer", "crosby", "nas")


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    with Lab([HostSpec(name=name, simulated_speed=0.5, cpus=1) for name in NAMES], rate_mbit=1000) as lab:
        yield lab


def test_a_run_goes_on_without_its_coordinator_with_a_host_that_joins_and_without_a_drained_one(
    lab: Lab, product: HeteroTui
) -> None:
    pair = HeteroTui(lab.laptop, lab.inventory(hosts=NAMES[:2]))
    begin = time.monotonic()
    assert pair.document("up")["cluster"]["state"] == "up"
    up_seconds = time.monotonic() - begin  # how slow this computer is
    with Following.train(pair) as following:
        following.until_checkpoints(2)
        following.until_copied()
        head, new = lab.host(following.head), lab.host(NAMES[2])
        events = [lab.host(name).home / f".hetero-tui/lab/runs/{following.run}/events.jsonl" for name in NAMES[:2]]
        copies = {path: path.stat() for path in events}
        for what, number in (
            ("coordinator", signal.SIGKILL),
            ("coordinator", signal.SIGSTOP),
            ("overseer", signal.SIGKILL),
        ):
            overseer, coordinator = coordinators(head)
            head.signal(coordinator if what == "coordinator" else overseer, number)
            stall = following.until_step_after_resume()
            print(f"{what}, {number.name}: the next step comes {stall:.1f} s later")
            assert stall <= max(BACK_SECONDS, 2 * up_seconds), (what, number)
        assert product.document("up")["cluster"]["state"] == "up"
        following.until_step_with(new)
        (leaver,) = [host for host in lab.hosts if host not in (head, new)]
        said = f"{following.run} is told to go on without {leaver.name}"
        assert product.document("drain", leaver.name) == {"run": following.run, "host": leaver.name, "said": said}
        following.until(protocol.WorkerLost, having=lambda one: one.host == leaver.name)
        following.until(protocol.Step)
        for path, before in copies.items():
            assert path.stat().st_ino == before.st_ino, "a copy from before is continued, not sent anew"
            assert path.stat().st_size > before.st_size
        following.stop()
    assert_whole(following.events)
    resumed = [one for one in following.events if isinstance(one, protocol.RunResumed)]
    assert [one.checkpoint for one in resumed] == ["", "", ""], "workers and servers were taken over"
    assert {one.host for one in steps(following.events)[0].workers} == set(NAMES[:2])
    (lost,) = [one for one in following.events if isinstance(one, protocol.WorkerLost) and one.host == leaver.name]
    assert "drained" in lost.cause
    assert leaver.name not in hosts_of(steps(following.events)[-1])
    assert_counted_once(head, following.run)
