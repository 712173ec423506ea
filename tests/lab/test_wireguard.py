"""``network: wireguard``: what hosts send each other can't be read, and the network comes and goes with the cluster.

The lab's kernel has none, so it is wireguard-go over TUN there. The switch is listened to as for TLS.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator

import pytest

from remote_agent.protocol import MESH_INTERFACE
from tests.lab.conftest import needs_wireguard
from tests.lab.following import ENDLESS, Following
from tests.lab.lab import Lab
from tests.lab.machines import Host, HostSpec
from tests.lab.product import HeteroTui, setting
from tests.lab.test_encryption import JOB, LEAST_BYTES, NEEDLE, SETTINGS, token
from tests.lab.wiretap import Wiretap

pytestmark = [pytest.mark.lab, pytest.mark.ray]

NAMES = ("mercer", "crosby", "nas")


@pytest.fixture(scope="module")
def lab(possible: None) -> Iterator[Lab]:
    needs_wireguard()
    with Lab([HostSpec(name=name, simulated_speed=0.1, cpus=1) for name in NAMES], rate_mbit=1000) as lab:
        (lab.laptop.home / "planted.py").write_text(JOB)
        yield lab


def interfaces(host: Host) -> list[str]:
    return re.findall(rf"\b{MESH_INTERFACE}[\w-]+", host.exec(["ip", "-o", "link"]).stdout)


def leftovers(lab: Lab) -> list[str]:
    found = [f"{host.name}: {name}" for host in lab.hosts for name in interfaces(host)]
    found += [f"{host.name}: {one.argv}" for host in lab.hosts for one in host.processes()]
    return found + [str(file) for host in lab.hosts for file in host.home.rglob("mesh.json")]


def train(lab: Lab, product: HeteroTui) -> Following:
    words = setting(SETTINGS | {"num_iterations": ENDLESS})
    return Following(product, "train", str(lab.laptop.home / "planted.py"), *words)


def test_in_wireguard_nothing_is_seen_a_rebooted_host_comes_back_and_down_leaves_no_interface(lab: Lab) -> None:
    product = HeteroTui(lab.laptop, lab.inventory(hosts=NAMES, network="wireguard"))
    try:
        assert product.document("up")["cluster"]["state"] == "up"
        files = [host.home / ".hetero-tui/lab/mesh.json" for host in lab.hosts]
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * len(files)
        assert [len(interfaces(host)) for host in lab.hosts] == [1] * len(lab.hosts)
        crosby = lab.host("crosby")
        with Wiretap(lab, [NEEDLE, token(lab)]) as tap, train(lab, product) as run:
            run.until_step(3, 180)
            crosby.exec(["ip", "link", "delete", *interfaces(crosby)])
            run.until_step_with(crosby)
            lab.host("nas").pull_plug()
            lab.host("nas").boot()
            run.until_step_with(lab.host("nas"))
            heard = tap.end()
            run.stop()
        print(heard)
        assert heard["bytes"] > LEAST_BYTES
        assert heard["found"] == [0, 0]
        direct = HeteroTui(lab.laptop, lab.inventory(hosts=NAMES))
        for words in (("up",), ("train", "digits")):
            done = direct.run(*words)
            assert done.returncode == 1
            assert "runs in a WireGuard network, and the inventory says `network: direct`" in done.stderr
    finally:
        down = product.document("down", "--yes")
    assert down["leftovers"] == []
    assert leftovers(lab) == []
