"""`up` and `down` are killed midway, and so is the head while the others join it: the next command goes on from there.

Each is killed the moment that something is seen to be half done, so that nothing depends on the computer's speed.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from remote_agent import deadlines
from remote_agent.host import layout
from tests.lab.lab import Lab
from tests.lab.machines import Host, HostProcess, HostSpec
from tests.lab.product import HeteroTui
from tests.wheels import thin_wheels

pytestmark = [pytest.mark.long, pytest.mark.lab, pytest.mark.ray]

NAMES = ("mercer", "crosby")
T = TypeVar("T")
NAMES = ("mercer", "crosby")
SEEN_WITHIN = 90.0
"""Seconds for a command to get as far as a test waits for."""


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    with Lab([HostSpec(name=name, cpus=1) for name in NAMES], rate_mbit=1000) as lab:
        yield lab


def test_after_a_head_that_was_killed_during_up_and_a_killed_up_the_next_up_makes_the_cluster_whole(
    lab: Lab, product: HeteroTui
) -> None:
    with product.start("up", "--json") as up:
        head, _ = when_seen(up, lambda: one_of(lab, "gcs_server"))
        (starter,) = [one.pid for one in head.processes() if "--head" in one.argv]
        head.signal(starter, signal.SIGKILL)
        killed = time.monotonic()
        _, said = up.communicate(timeout=SEEN_WITHIN)
    assert time.monotonic() - killed < deadlines.HEAD_REACHABLE_SECONDS, "the others went on to wait for the head"
    assert up.returncode == 3
    assert "Traceback" not in said
    assert f"Ray does not start on {head.name}, so another machine is the head" in said
    assert running(head, "gcs_server") == []

    kill_when(product.start("up"), lambda: one_of(lab, "raylet"))

    document = product.document("up")
    assert document["cluster"]["state"] == "up"
    assert [len(running(host, "raylet")) for host in lab.hosts] == [1, 1]
    assert [len(running(host, "gcs_server")) for host in lab.hosts].count(1) == 1


def test_a_down_that_was_killed_is_finished_by_the_next_down(lab: Lab, product: HeteroTui) -> None:
    product.document("up")
    stopping = [layout.stop_flag(host.home / ".hetero-tui/lab") for host in lab.hosts]
    kill_when(product.start("down", "--yes"), lambda: any(flag.exists() for flag in stopping))
    document = product.document("down", "--yes")
    assert_nothing_left(lab, document)


def test_an_up_that_was_killed_leaves_nothing_that_down_does_not_find(lab: Lab, product: HeteroTui) -> None:
    kill_when(product.start("up"), lambda: one_of(lab, "gcs_server"))
    document = product.document("down", "--yes")
    assert_nothing_left(lab, document)


@pytest.mark.parametrize("there", ["install", "env"])
def test_a_host_that_loses_power_in_the_middle_of_bootstrap_costs_only_itself_and_the_next_one_goes_on(
    possible: None, there: str
) -> None:
    """``there``: what is in the cluster's folder by then."""
    with Lab([HostSpec(name=name, cpus=1) for name in NAMES], rate_mbit=100) as fresh:
        product = HeteroTui(fresh.laptop, fresh.inventory({name: {"python": None} for name in NAMES}))
        wheels = thin_wheels(fresh.laptop.home / "wheelhouse")
        words = ("bootstrap", "--from-laptop", "--wheels", str(wheels))
        crosby = fresh.host("crosby")
        with product.start(*words, "--json") as command:
            when_seen(command, lambda: (crosby.home / ".hetero-tui/lab" / there).exists())
            crosby.pull_plug()
            said, narrated = command.communicate(timeout=SEEN_WITHIN)
        assert command.returncode == 3, narrated
        assert "Traceback" not in narrated
        errors = {host["name"]: host["error"] for host in json.loads(said)["hosts"]}
        assert errors["mercer"] is None
        assert re.search("was lost midway|was closed|did not end within|no answer", errors["crosby"]["cause"])
        assert errors["crosby"]["hint"]
        crosby.boot()
        fresh.await_hosts(crosby)
        again = {host["name"]: host["changed"] for host in product.document(*words)["hosts"]}
        assert again == {"mercer": False, "crosby": True}


# --- What the tests do and ask ---------------------------------------------------------------------------------------


def kill_when(command: subprocess.Popen[str], half_done: Callable[[], object]) -> None:
    with command:
        when_seen(command, half_done)
        command.kill()
        command.communicate()
    assert command.returncode == -signal.SIGKILL


def when_seen(command: subprocess.Popen[str], look: Callable[[], T | None]) -> T:
    ends = time.monotonic() + SEEN_WITHIN
    while not (found := look()):
        assert command.poll() is None, f"it ended before: {command.communicate()}"
        assert time.monotonic() < ends, "the moment did not come"
        time.sleep(0.02)
    return found


def running(host: Host, program: str) -> list[int]:
    """PIDs of the processes on a host whose program is called so."""
    return [one.pid for one in host.processes() if Path(one.argv[0]).name == program]


def one_of(lab: Lab, program: str) -> tuple[Host, int] | None:
    found = [(host, pid) for host in lab.hosts for pid in running(host, program)]
    return found[0] if found else None


def is_order(process: HostProcess) -> bool:
    """Whether it is a command that a laptop gave."""
    return any("remote_agent.host.node" in word for word in process.argv)


def await_end_of_orders(host: Host) -> None:
    """What the killed laptop had ordered finds nothing left to do, and ends a moment after the next one's order."""
    ends = time.monotonic() + SEEN_WITHIN
    while left := host.processes():
        assert time.monotonic() < ends, left
        time.sleep(0.02)


def assert_nothing_left(lab: Lab, document: dict[str, object]) -> None:
    assert document["leftovers"] == []
    for host in lab.hosts:
        assert [one for one in host.processes() if not is_order(one)] == []
        await_end_of_orders(host)
        assert host.listening_ports() == frozenset()
        assert not [path for path in host.home.glob(".hetero-tui/lab/*") if path.name not in ("agent", "runs")]
    assert not list(lab.laptop.home.glob(".local/state/hetero-tui/*"))
