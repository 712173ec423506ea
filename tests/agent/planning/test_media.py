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
from remote_agent.planning.survey import Host, Survey, Work
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


def test_links_that_carry_more_alone_share_what_they_carried_at_once_together() -> None:
    found = media.found([(AIR / 3, AIR / 3)] * 3 + [(1.2e6, 1.1e6)], [AIR] * 3 + [1.2e6])
    assert found.medium == pytest.approx(2 * AIR), "sent and received"
    assert found.both == (found.medium,) * 3 + (0.0,)


def test_connections_that_share_need_not_have_as_much_each() -> None:
    # As measured with three connections over one queue of 40 Mbit/s.
    found = media.found([(0.45e6, 4.02e6), (0.45e6, 0.45e6), (4.02e6, 0.45e6)], [4.68e6] * 3)
    assert found.medium == pytest.approx(2 * 4.92e6)
    assert found.both == (found.medium,) * 3


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


@given(data=st.data())
def test_measured_again_each_link_has_what_it_shares_by_now_and_what_is_not_known_anew_stays(
    data: st.DataObject,
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(("wire", "alone", "wifi", "shared", "twin")), min_size=1, max_size=6))
    hosts = [
        Host(
            name=f"h{number}",
            devices=(),
            both=0.0 if kind == "wire" else 5e6,
            medium={"wifi": "wifi", "shared": SHARED, "twin": SHARED}.get(kind, ""),
            computer="tower" if kind == "twin" else "",
        )
        for number, kind in enumerate(kinds)
    ]
    shares = [each for each in hosts if each.medium == SHARED]
    known = {each.name: (1e6 * (number + 1), 2e6) for number, each in enumerate(hosts) if data.draw(st.booleans())}
    for each in hosts:  # those of one computer have one link
        if each.computer and each.name in known:
            known[each.name] = (7e6, 2e6)
    before = Survey(
        job="text",
        work=Work(parameters=1, batch=1),
        hosts=tuple(hosts),
        media={"wifi": 5e6, **({SHARED: 5e6} if shares else {})},
    )
    now = media.measured_again(before, known)
    links = {each.computer or each.name: known.get(each.name) for each in sorted(shares, key=lambda e: e.name in known)}
    together = 5e6 if None in links.values() else sum(sum(link) for link in links.values() if link)
    assert now.media == {"wifi": 5e6, **({SHARED: together} if shares else {})}
    for kind, old, new in zip(kinds, hosts, now.hosts, strict=True):
        expected = {"alone": sum(known.get(old.name, (5e6,))), "shared": together, "twin": together}.get(kind, old.both)
        assert new == dataclasses.replace(old, both=expected)


def test_a_step_on_a_shared_medium_takes_the_sum_of_what_all_send_and_fewer_have_more_of_it() -> None:
    shared, apart = _surveyed(AIR / 3, AIR), _surveyed(AIR / 3, AIR / 3)
    each_s = 4 * PARAMETERS / AIR
    # Two workers push to the shard on the first host and pull from it; of two hosts one does.
    assert _exchange_s(shared, "abc") == pytest.approx(4 * each_s, rel=0.01)
    assert _exchange_s(shared, "ab") == pytest.approx(2 * each_s, rel=0.01)
    assert _exchange_s(apart, "ab") == pytest.approx(6 * each_s, rel=0.01), "as if each had a third whoever sends"


def test_a_host_on_a_link_of_its_own_is_on_no_medium() -> None:
    own = media.on(host("d", FAST), 0.0, 2 * AIR)
    assert (own.both, own.medium) == (0.0, "")


def test_it_is_said_who_shares_what() -> None:
    shared = _surveyed(AIR / 3, AIR)
    told = verdicts(shared, choose(shared))
    assert "a, b and c share one medium of 24 MB/s, sent and received: the fewer use it, the more each has" in told
    single = survey([host("a", 1.0), dataclasses.replace(host("b", 1.0), both=AIR)], PARAMETERS)
    told = verdicts(single, choose(single))
    assert "the link of b carries one direction at a time, 12 MB/s" in told
    only = dataclasses.replace(shared, hosts=shared.hosts[:1])
    assert verdicts(only, choose(only))[-1] == "the link of a carries one direction at a time, 24 MB/s"


def test_what_is_shared_stays_shared_when_links_are_measured_again() -> None:
    before = _surveyed(AIR / 3, AIR)
    twin = dataclasses.replace(before.hosts[2], name="d", computer="one")
    before = dataclasses.replace(
        before, hosts=(*before.hosts[:2], dataclasses.replace(before.hosts[2], computer="one"), twin)
    )
    before = dataclasses.replace(before, media={**before.media, "wifi": 5e6})
    rates = {"a": (1e6, 1e6), "b": (2e6, 2e6), "c": (3e6, 3e6), "d": (3e6, 3e6)}
    now = media.measured_again(before, rates)
    assert now.media == {SHARED: 12e6, "wifi": 5e6}, "hosts of one computer have one link"
    assert {(each.both, each.medium) for each in now.hosts} == {(12e6, SHARED)}
    assert media.measured_again(before, {"a": (1e6, 1e6)}) == before, "of the others nothing is known"
    wired = survey([host("a", 1.0, AIR), Host(name="b", devices=(), up=AIR / 2, down=AIR / 2, both=AIR)])
    now = media.measured_again(wired, {"b": (1e6, 2e6)})
    assert [each.both for each in now.hosts] == [0.0, 3e6]
    assert now.media == {}
