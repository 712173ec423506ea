"""Where a prediction has the shards: as the product puts them, on hosts that have the memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.planning.sharding import CHUNK_NUMBERS, COPIES
from remote_agent.planning.sites import MAX_SITES, NoRoom, sited
from remote_agent.planning.survey import Host
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan import siting
from remote_agent.training.coordinator.plan.siting import Computer, ShardHosts
from remote_agent.training.errors import PlacementError
from remote_agent.training.shared.link_speed import LinkRates
from remote_agent.training.wire.codecs import EXACT
from tests.agent.planning.fleets import LINK_1G, LINK_100M, host, survey

MILLION = 1_000_000
HELD = 4 * COPIES * MILLION
"""Bytes that a parameter server of a million numbers takes."""


def of(hosts: Sequence[Host], parameters: int = MILLION, shards: int = 0, codec: str = "fp32") -> dict[str, float]:
    return sited(survey(hosts, parameters), codec, shards)


def by_the_product(hosts: Sequence[Host], parameters: int, shards: int) -> dict[str, float] | None:
    """Where a run puts the shards; None: it refuses."""
    places: dict[str, list[Host]] = {}
    for each in hosts:
        places.setdefault(each.name if shards > 1 else each.computer or each.name, []).append(each)

    def rates(first: Host) -> LinkRates:
        return LinkRates(up=first.up, down=first.down, memory=first.memory or 0, reachable=first.reachable)

    computers = tuple(
        Computer(
            hosts=tuple(each.name for each in together),
            workers={each.name: len(each.devices) for each in together},
            rates=rates(together[0]),
        )
        for together in places.values()
    )
    there = ShardHosts(first=hosts[0].name, together=len(places) == 1, computers=computers)
    try:
        found = siting.site(TrainingConfig(shards=shards), parameters, EXACT, there)
    except PlacementError:
        return None
    return dict(zip(found.hosts, found.parts, strict=True))


@st.composite
def fleets(draw: st.DrawFn) -> list[Host]:
    rates = st.sampled_from([1e6, 3e6, LINK_100M, LINK_1G])
    return [
        Host(
            name=f"h{number}",
            devices=host("any", 10, devices=draw(st.integers(1 if number == 0 else 0, 3))).devices,
            up=draw(rates),
            down=draw(rates),
            memory=draw(st.sampled_from([HELD // 4, HELD, 100 * HELD])) if number else 100 * HELD,
            reachable=draw(st.booleans()),
            computer=draw(st.sampled_from(["", "", "x"])),
        )
        for number in range(draw(st.integers(1, 5)))
    ]


@given(fleets(), st.sampled_from([CHUNK_NUMBERS, CHUNK_NUMBERS + 1, MILLION]), st.integers(0, 3))
def test_shards_are_where_a_run_puts_them(hosts: list[Host], parameters: int, shards: int) -> None:
    theirs = by_the_product(hosts, parameters, shards)
    if theirs is None and shards > 1:
        return  # a run asks for so many hosts; a prediction of fewer hosts has a shard on each of them
    if theirs is None:
        with pytest.raises(NoRoom):
            of(hosts, parameters, shards)
        return
    assert of(hosts, parameters, shards) == pytest.approx(theirs)


def test_a_codec_makes_the_exchange_too_short_for_several_shards() -> None:
    hosts = [host(name, 40, 1e9) for name in "abc"]  # in fp32 12 MB against 8: 4 ms less
    assert len(of(hosts, 1_500_000)) == 3
    assert of(hosts, 1_500_000, codec="int8") == {"a": 1.0}


# --- Of more hosts than MAX_SITES ------------------------------------------------------------------------------------


def many(count: int = MAX_SITES + 1, **more: int | None) -> list[Host]:
    """Hosts whose links are the faster the later they come, but the first, which is between the last two."""
    return [host(f"h{number}", 40, 1e6 * (number or count - 1.5), **more) for number in range(count)]


def test_of_many_hosts_those_with_the_best_links_hold_equal_parts() -> None:
    best = [f"h{number}" for number in (MAX_SITES, 0, *range(MAX_SITES - 1, 0, -1))]
    assert of(many()) == dict.fromkeys(best[:20], 0.05)
    assert of(many(), shards=4) == dict.fromkeys(best[:4], 0.25)
    assert len(of(many(MAX_SITES))) != 20, "of fewer the parts are what makes a step shortest"


def test_of_many_hosts_only_those_with_the_room_and_in_reach_hold_a_shard() -> None:
    enough, short = HELD // 4, HELD // 4 - 1
    poor = [
        Host(name="small", devices=(), up=1e9, down=1e9, memory=short),
        Host(name="hidden", devices=(), up=1e9, down=1e9, memory=enough, reachable=False),
    ]
    assert set(of([*poor, *many(memory=enough)], shards=4)) == {"h24", "h0", "h23", "h22"}
    with pytest.raises(NoRoom, match=r"^4 shards need 0\.01 GB on as many hosts$"):
        of([*poor, *many(memory=short)], shards=4)
    three = [*many(memory=short), *(host(f"large{number}", 40, memory=2 * enough) for number in range(3))]
    assert of(three, shards=3) == pytest.approx({f"large{number}": 1 / 3 for number in range(3)})
    with pytest.raises(NoRoom, match="4 shards need"):
        of(three, shards=4)
