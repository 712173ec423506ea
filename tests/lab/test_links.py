"""What a strategy puts on the hosts' links, counted at their network devices; and what a plan finds out of them."""

from __future__ import annotations

import re

import pytest

from benchmarks import wire
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui

pytestmark = [pytest.mark.lab]

NUMEL, STEPS = 2_000_000, 1


@pytest.mark.long
def test_more_devices_in_a_host_send_one_gradient_to_the_shards(possible: None) -> None:
    with Lab([HostSpec(name=name) for name in wire.HOSTS], rate_mbit=100) as lab:
        one, two, four = (wire.exchanged(lab, devices, NUMEL, STEPS)[1] for devices in (1, 2, 4))
        each_by_itself = wire.exchanged(lab, 4, NUMEL, STEPS, apart=True)[1]
    assert max(two, four) < 1.05 * one
    assert each_by_itself > 1.2 * one, "it would be seen"


@pytest.mark.long
def test_more_devices_in_a_host_put_no_more_on_its_link(possible: None) -> None:
    with Lab([HostSpec(name=name) for name in wire.HOSTS], rate_mbit=100) as lab:
        one, two, four = (wire.reduced(lab, devices, NUMEL, STEPS)[1] for devices in (1, 2, 4))
        each_by_itself = wire.reduced(lab, 4, NUMEL, STEPS, apart=True)[1]
    assert (two, four) == (pytest.approx(one, rel=0.05), pytest.approx(one, rel=0.05))
    assert each_by_itself > 1.2 * one, "it would be seen"


@pytest.mark.long
def test_a_plan_finds_that_hosts_share_a_medium_and_what_that_carries(possible: None) -> None:
    with Lab([HostSpec(name=name, cpus=1) for name in ("mercer", "crosby")], medium_mbit=40) as lab:
        product = HeteroTui(lab.laptop, lab.inventory())
        assert product.run("up", "--json").returncode == 0
        try:
            told = " ".join(product.document("plan", "digits")["verdicts"])
        finally:
            product.run("down", "--yes", "--json")
    found = re.search(r"mercer and crosby share one medium of ([\d.]+) MB/s", told)
    assert found is not None, told
    assert float(found[1]) == pytest.approx(2 * 40 / 8, rel=0.2), "each byte is sent, and received"
