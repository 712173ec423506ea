"""Links that share something are found by what they carry at once and alone, and a prediction follows from it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.planning import media
from remote_agent.planning.choice import choose
from remote_agent.planning.media import SHARED
from remote_agent.planning.simulator import predict
from remote_agent.planning.survey import Survey
from remote_agent.planning.verdicts import verdicts
from remote_agent.planning.ways import Way
from tests.agent.planning.fleets import host, survey

AIR = 12e6
"""Bytes/s that pass a medium, whoever sends them."""

PARAMETERS = 100_000
"""One chunk, which is pushed and then pulled."""

FAST = 1e9


def _surveyed(at_once: float, alone: float, count: int = 3) -> Survey:
    """Hosts whose links were all measured to be so fast."""
    found = media.found([(at_once, at_once)] * count, [alone] * count)
    hosts = [media.on(host(name, FAST, at_once), found.both[n], found.medium) for n, name in enumerate("abc"[:count])]
    made = survey(hosts, PARAMETERS)
    return dataclasses.replace(made, media={SHARED: found.medium} if found.medium else {})


def _exchange_s(of: Survey, hosts: str) -> float:
    return predict(of, Way(strategy="sync", hosts=tuple(hosts))).seconds


def test_links_of_their_own_carry_as_much_at_once_as_alone() -> None:
    found = media.found([(118e6, 117e6), (11.8e6, 11.7e6)], [118e6, 11.8e6])
    assert found == media.Found(both=(0.0, 0.0))
    assert media.found([(AIR / 3, AIR / 3)] * 3, [0.0] * 3).medium == 0.0, "not measured alone"
    assert media.found([(0.0, 0.0)], [5.0]).both == (0.0,), "nothing is known of it"


def test_two_links_are_a_medium_and_one_that_sent_nothing_at_once_is_on_none() -> None:
    found = media.found([(AIR / 4, AIR / 4)] * 2, [AIR] * 2)
    assert (found.both, found.medium) == ((AIR, AIR), AIR)
    found = media.found([(AIR / 4, AIR / 4)] * 2 + [(0.0, AIR / 4)], [AIR] * 3)
    assert found.both == (AIR, AIR, 0.0)
    just_not = 0.99 * media.FASTER * AIR / 4
    assert media.found([(AIR / 4, AIR / 4)] * 2, [just_not] * 2).both == (0.0, 0.0)
    assert media.found([(AIR / 4, AIR / 4)] * 2, [1.02 * just_not] * 2).medium == AIR


def test_a_link_that_receives_less_from_a_slow_partner_shares_nothing() -> None:
    assert media.found([(11.8e6, 1e6), (1e6, 11.8e6)], [11.8e6, 1e6]).both == (0.0, 0.0)
    assert media.found([(0.75 * AIR, 0.9 * AIR)] * 2, [AIR] * 2).both == (0.0, 0.0), "that is a measurement's error"


def test_one_link_that_carries_more_alone_carries_one_direction_at_a_time() -> None:
    half = AIR / 2
    found = media.found([(half, half), (118e6, half), (half, 118e6)], [AIR, 118e6, AIR])
    assert (found.both, found.medium) == ((AIR, 0.0, 0.0), 0.0)


RATES = st.floats(1e5, 1e8)


@given(rates=st.lists(RATES, min_size=2, max_size=6), error=st.floats(0.9, 1.1))
def test_a_medium_is_found_however_its_connections_share_it(rates: list[float], error: float) -> None:
    """Each host sends to the next one, and a byte passes the medium twice."""
    carried = sum(rates)
    sharing = list(zip(rates, [rates[-1], *rates[:-1]], strict=True))
    found = media.found(sharing, [carried * error] * len(rates))
    assert found == media.Found(both=(pytest.approx(2 * carried),) * len(rates), medium=pytest.approx(2 * carried))


@given(own=st.lists(st.tuples(RATES, RATES, st.floats(0.8, 1.2)), min_size=1, max_size=6))
def test_no_medium_is_found_where_each_sends_as_much_at_once_as_alone(own: list[tuple[float, float, float]]) -> None:
    found = media.found([(up, down) for up, down, _ in own], [up * error for up, _, error in own])
    assert found == media.Found(both=(0.0,) * len(own))


def test_a_step_on_a_shared_medium_takes_the_sum_of_what_all_send_and_fewer_have_more_of_it() -> None:
    shared, apart = _surveyed(AIR / 3, AIR), _surveyed(AIR / 3, AIR / 3)
    each_s = 4 * PARAMETERS / AIR
    # Two workers push to the shard on the first host and pull from it; of two hosts one does.
    assert _exchange_s(shared, "abc") == pytest.approx(4 * each_s, rel=0.01)
    assert _exchange_s(shared, "ab") == pytest.approx(2 * each_s, rel=0.01)
    assert _exchange_s(apart, "ab") == pytest.approx(6 * each_s, rel=0.01), "as if each had a third whoever sends"


def test_it_is_said_who_shares_what() -> None:
    shared = _surveyed(AIR / 3, AIR)
    told = verdicts(shared, choose(shared))
    assert "a, b and c share one medium of 24 MB/s, sent and received: the fewer use it, the more each has" in told
    single = survey([host("a", 1.0), dataclasses.replace(host("b", 1.0), both=AIR)], PARAMETERS)
    told = verdicts(single, choose(single))
    assert "the link of b carries one direction at a time, 12 MB/s" in told
    only = dataclasses.replace(shared, hosts=shared.hosts[:1])
    assert verdicts(only, choose(only))[-1] == "the link of a carries one direction at a time, 24 MB/s"
