"""Unusual hosts form one cluster and train; a firewall between them is named.

None of the machines has an address of IPv4, but for Docker's. The tests tell one story in the file's order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_agent import protocol
from tests.lab.conftest import skip
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui, setting, steps
from tests.lab.test_unusual_hosts import KINDS, WALL, account, bash

pytestmark = [pytest.mark.long, pytest.mark.lab, pytest.mark.ray]

STEPS = 5
USER, UID = "first.last+lab", 3_000_000_000
LINK = Path("/run/home")
DEBIANS = "printf '127.0.0.1 localhost\\n127.0.1.1 {name}\\n' > /run/hosts; mount --bind /run/hosts /etc/hosts"
"""A host that takes its own name for its loopback, as Debian's installer writes it, and knows no other host by name."""
HOSTS = {
    "mercer": HostSpec(
        name="mercer",
        cpus=1,
        server=("MaxSessions 1",),
        arrange=f"{KINDS['dockera'].arrange}; mount -o remount,noexec /tmp; {DEBIANS.format(name='mercer')}",
        files={**(KINDS["pythons"].files or {}), **bash("export PYTHONHOME=/x PYTHONPATH=~/shadow; unset HOME")},
    ),
    "crosby": HostSpec(
        name="crosby",
        cpus=1,
        arrange=f"{KINDS['dockerb'].arrange}; ln -s ~ {LINK}; {account('root', '/usr/bin/fish', home=LINK)};"
        " mount -o remount,ro /tmp",
        files=KINDS["fish"].files or {},
    ),
    "nas": HostSpec(
        name="nas",
        cpus=1,
        server=("AllowUsers *", "Subsystem sftp /bin/false"),
        arrange=f"{account(USER, uid=UID)}; chown {UID}:{UID} ~ ~/.bashrc; mount -o remount,size=1m /dev/shm;"
        f" {DEBIANS.format(name='somebody')}",  # its own name can't be resolved at all
        files=bash("umask 000; set -eu; echo welcome; export RAY_ADDRESS=1.2.3.4:5"),
    ),
    "walled": HostSpec(name="walled", cpus=1, arrange=WALL.format(ports="22, 6389"), files=KINDS["csh"].files or {}),
}


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    for kind in ("fish", "csh", "walled"):
        if not KINDS[kind].possible:
            skip(f"this computer has no {KINDS[kind].needs}")
    with Lab([*HOSTS.values()], rate_mbit=1000, ipv6=True) as lab:
        yield lab


@pytest.fixture(scope="module")
def product(lab: Lab) -> HeteroTui:
    return HeteroTui(lab.laptop, lab.inventory({"nas": {"user": USER}}))


def test_up_names_a_firewall_and_the_command_that_it_names_opens_it(lab: Lab, product: HeteroTui) -> None:
    document = product.document("up", exit_code=3)
    states = {host["name"]: host for host in document["hosts"]}
    assert {name: host["state"] for name, host in states.items()} == {
        "mercer": "up",
        "crosby": "up",
        "nas": "up",
        "walled": "unfit",
    }
    error = states["walled"]["error"]
    assert error["step"] == "reach"
    assert re.fullmatch(
        r"mercer, crosby and nas can't connect to it at [\da-f:]+, TCP ports [\d, ]+: no answer \(open: 6389\)",
        error["cause"],
    )
    commands = re.findall("on walled `sudo ([^`]+)`", error["hint"])
    assert len(commands) == 3
    for command in commands:
        assert lab.host("walled").exec(["sh", "-c", command]).returncode == 0
    assert product.document("up")["cluster"]["state"] == "up"


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_hosts_of_unusual_kinds_train_together(product: HeteroTui, strategy: str) -> None:
    events = product.events("train", "digits", *setting({"num_iterations": STEPS, "strategy": strategy}))
    assert [one.step for one in steps(events)] == [*range(1, STEPS + 1)]
    # One that is slow at the moment may get no share, but it is connected, measured and would.
    assert {one.host for one in events if isinstance(one, protocol.WorkerJoined)} == {*HOSTS}


def test_nothing_is_left(lab: Lab, product: HeteroTui) -> None:
    assert product.document("down", "--yes")["leftovers"] == []
    assert [host.processes() for host in lab.hosts] == [()] * len(HOSTS)
