"""A host that DHCP gives another address is out of the cluster, says why, and the next ``up`` takes it in again."""

from __future__ import annotations

import time

import pytest

from tests.lab.lab import NETWORK, Lab
from tests.lab.machines import HostSpec
from tests.lab.network import INTERFACE
from tests.lab.product import HeteroTui

pytestmark = [pytest.mark.long, pytest.mark.lab, pytest.mark.ray]

OTHER = f"{NETWORK}77"
SAID_WITHIN = 60.0
"""Seconds until the host has noticed, which on a busy computer includes an attempt to start Ray."""


def test_a_host_with_another_address_says_so_and_up_takes_it_in(possible: None) -> None:
    with Lab([HostSpec(name=name, cpus=1) for name in ("mercer", "crosby")], rate_mbit=1000) as lab:
        product = HeteroTui(lab.laptop, lab.inventory())
        assert product.document("up")["cluster"]["state"] == "up"
        crosby = lab.host("crosby")
        change = f"ip addr flush dev {INTERFACE}; ip addr add {OTHER}/24 dev {INTERFACE}"
        assert crosby.exec(["sh", "-c", change]).returncode == 0
        product.inventory.write_text(product.inventory.read_text().replace(crosby.address, OTHER))  # as the user does
        assert product.run("probe", "--accept-new-host-keys").returncode == 0

        ends, detail = time.monotonic() + SAID_WITHIN, ""
        while f"address is not {crosby.address} any more" not in detail:
            assert time.monotonic() < ends, detail
            status = product.document("status")
            (detail,) = [host["detail"] for host in status["hosts"] if host["name"] == "crosby"]

        document = product.document("up")
        assert document["cluster"]["state"] == "up"
        assert {host["name"]: host["state"] for host in document["hosts"]} == {"mercer": "up", "crosby": "up"}
        assert product.document("down", "--yes")["leftovers"] == []
