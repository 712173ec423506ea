"""What a strategy puts on the hosts' links, counted at their network devices."""

from __future__ import annotations

import pytest

from benchmarks import wire
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240, method="signal")]

NUMEL, STEPS = 2_000_000, 1


@pytest.mark.long
def test_more_devices_in_a_host_put_no_more_on_its_link(possible: None) -> None:
    with Lab([HostSpec(name=name) for name in wire.HOSTS], rate_mbit=100) as lab:
        one, two, four = (wire.reduced(lab, devices, NUMEL, STEPS)[1] for devices in (1, 2, 4))
        each_by_itself = wire.reduced(lab, 4, NUMEL, STEPS, apart=True)[1]
    assert (two, four) == (pytest.approx(one, rel=0.05), pytest.approx(one, rel=0.05))
    assert each_by_itself > 1.2 * one, "it would be seen"
