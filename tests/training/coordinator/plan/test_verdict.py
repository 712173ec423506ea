"""Which hosts a plan calls useful."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_agent.training.coordinator.plan import verdict
from remote_agent.training.coordinator.plan.sharding import COPIES, Site, Traffic
from remote_agent.training.coordinator.plan.verdict import Demand, Peer, best, estimate, reasons
from remote_agent.training.shared.device_profile import DeviceProfile

PARAMETERS = 1_000_000
BYTES = 4 * PARAMETERS
TRAFFIC = Traffic(gradient=BYTES, weights=BYTES, held=COPIES * BYTES)
DEMAND = Demand(batch=48, least=1, traffic=TRAFFIC)
LINK_1G, LINK_100M, LINK_10M = 118e6, 11.8e6, 1.18e6


def peer(host: str, speed: float, rate: float = LINK_1G, *, memory: int | None = None, devices: int = 1) -> Peer:
    site = Site(host=host, workers=devices, up=rate, down=rate, memory=memory)
    return Peer(names=(host,), site=site, profiles=(DeviceProfile(speed),) * devices)


def test_two_equal_hosts_compute_half_each_and_exchange_at_the_floor() -> None:
    found = estimate([peer("a", 40), peer("b", 40)], DEMAND)
    assert found is not None
    assert found.compute_s == pytest.approx(48 / 80)
    assert found.exchange_s == pytest.approx(2 * (1 / 2) * BYTES / LINK_1G)  # 2 (n - 1) / n


def test_one_host_alone_exchanges_nothing() -> None:
    found = estimate([peer("a", 40, devices=2)], DEMAND)
    assert found is not None
    assert (found.compute_s, found.exchange_s) == (pytest.approx(48 / 80), 0.0)


def test_hosts_that_help_are_said_to_help_and_by_how_much() -> None:
    told = reasons([peer("mercer", 40), peer("crosby", 40), peer("nas", 1)], DEMAND)
    assert told[0].startswith("a step with all 3 hosts: ")
    assert told[1].startswith("mercer makes training ")
    assert told[1].endswith("% faster")
    assert told[3].startswith("nas makes little difference (")


def test_a_host_behind_a_slow_link_is_named_with_the_time_that_it_costs_and_how_to_leave_it_out() -> None:
    told = reasons([peer("mercer", 4), peer("crosby", 4), peer("nas", 1, LINK_10M)], DEMAND)
    assert told[1].startswith("mercer, crosby would be faster: 6.03 s a step, not ")
    assert told[1].endswith(": leave nas out (hetero-tui drain nas)")
    assert len(told) == 2


def test_one_machine_is_advised_where_the_link_eats_what_the_others_add() -> None:
    told = reasons([peer("mercer", 40, LINK_10M), peer("crosby", 20, LINK_10M), peer("nas", 20, LINK_10M)], DEMAND)
    assert told[1].startswith("mercer alone would be faster: 1.2 s a step, not ")
    assert "leave crosby and nas out (hetero-tui drain crosby ...)" in told[1]


def test_a_host_whose_memory_is_needed_is_said_to_be_needed() -> None:
    small = DeviceProfile(40, 0.0, 30)
    peers = [Peer(names=(name,), site=peer(name, 40, LINK_10M).site, profiles=(small,)) for name in ("a", "b")]
    told = reasons(peers, DEMAND)
    assert told[1:] == tuple(f"{name} is needed: without it the job does not fit" for name in ("a", "b"))


def test_nothing_is_said_of_one_host_or_of_hosts_that_cannot_hold_the_job() -> None:
    assert not reasons([peer("a", 40)], DEMAND)
    assert not reasons([peer("a", 40, memory=0), peer("b", 40, memory=0)], DEMAND)


speeds = st.floats(1, 1000)
links = st.floats(1e5, 1e9)


@settings(max_examples=30)
@given(st.lists(st.tuples(speeds, links), min_size=1, max_size=5))
def test_no_set_of_hosts_is_faster_than_the_best(given_: list[tuple[float, float]]) -> None:
    peers = [peer(str(number), speed, rate) for number, (speed, rate) in enumerate(given_)]
    chosen = best(peers, DEMAND)
    assert chosen is not None
    for count in range(1, len(peers) + 1):
        for some in itertools.combinations(peers, count):
            found = estimate(some, DEMAND)
            assert found is not None
            assert chosen.seconds <= found.seconds


@settings(max_examples=30)
@given(st.lists(st.tuples(speeds, links), min_size=2, max_size=5))
def test_of_many_hosts_the_best_is_never_worse_than_all_or_than_one(given_: list[tuple[float, float]]) -> None:
    peers = [peer(str(number), speed, rate) for number, (speed, rate) in enumerate(given_)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict, "MAX_SUBSETS", 1)
        chosen = best(peers, DEMAND)
    assert chosen is not None
    for some in [peers, *([each] for each in peers)]:
        found = estimate(some, DEMAND)
        assert found is not None
        assert chosen.seconds <= found.seconds
