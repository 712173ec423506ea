"""Several shards in a run: where they are put."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.planning import sharding
from remote_agent.planning.sharding import COPIES, Site, Traffic, chunk_numbers, decide, exchange_seconds
from remote_agent.training.wire.layout import plan_layout

PARAMETERS = 16_900_000
TRAFFIC = Traffic(gradient=4 * PARAMETERS, weights=4 * PARAMETERS, held=4 * COPIES * PARAMETERS)
FAST = 11.8e6


def host(name: str, workers: int = 1, rate: float = FAST, memory: int | None = None, *, reachable: bool = True) -> Site:
    return Site(host=name, workers=workers, up=rate, down=rate, memory=memory, reachable=reachable)


rates = st.floats(1e4, 1e10)


@st.composite
def fleets(draw: st.DrawFn) -> list[Site]:
    """A first host that all can connect to, and up to five others; at least one worker."""
    count = draw(st.integers(1, 6))
    sites = [
        Site(
            host=str(number),
            workers=draw(st.integers(0, 4)),
            up=draw(rates),
            down=draw(rates),
            memory=draw(st.none() | st.integers(0, 2 * TRAFFIC.held)),
            reachable=not number or draw(st.booleans()),
        )
        for number in range(count)
    ]
    if draw(st.booleans()):
        sites = [dataclasses.replace(site, peers=min(1, site.workers)) for site in sites]
    return [*sites, host("worker", draw(st.integers(1, 3)), draw(rates))]


@pytest.mark.parametrize(
    ("workers", "held", "alike"),
    [
        ((1, 4), (0, 1), 1),  # those of the crowded host are with the only shard
        ((4, 4), (0.5, 0.5), 1),
        ((1, 4, 1), (1 / 3, 1 / 3, 1 / 3), 4 / 3),
        ((2, 2, 2), (1 / 3, 1 / 3, 1 / 3), 4 / 3),
    ],
)
def test_a_host_with_several_devices_has_a_part_so_that_its_link_carries_one_gradient(
    workers: tuple[int, ...], held: tuple[float, ...], alike: float
) -> None:
    sites = [dataclasses.replace(host(str(number), count), peers=1) for number, count in enumerate(workers)]
    found = decide(sites, TRAFFIC)
    assert found.parts == pytest.approx(held)
    assert found.seconds == pytest.approx(alike * TRAFFIC.gradient / FAST)


traffics = st.builds(
    Traffic, gradient=st.integers(1, 10**9), weights=st.integers(1, 10**9), held=st.integers(1, 10**10)
)


@given(fleets(), traffics, st.integers(0, 7))
def test_parts_sum_to_one_fit_into_memory_and_are_never_worse_than_one_shard(
    sites: list[Site], traffic: Traffic, count: int
) -> None:
    usable = [site.most(traffic.held) for site in sites]
    try:
        decision = decide(sites, traffic, count)
    except ValueError:
        assert sum(site.reachable for site in sites) < count or sum(usable) < 1 + 1e-6 or count
        return
    assert sum(decision.parts) == pytest.approx(1)
    assert decision.seconds == pytest.approx(exchange_seconds(decision.parts, sites, traffic))
    for site, part in zip(sites, decision.parts, strict=True):
        assert part >= 0
        assert site.reachable or not part
        if not count:
            assert part <= site.most(traffic.held) + 1e-6
    if count:
        assert sum(part > 0 for part in decision.parts) == count
    elif usable[0] >= 1:
        assert decision.seconds <= decision.alone_s * (1 + 1e-6)


@given(rates, rates, rates, rates, st.integers(0, 3), st.integers(1, 3), traffics)
def test_no_other_split_between_two_hosts_is_much_faster(
    up: float, down: float, other_up: float, other_down: float, workers: int, others: int, traffic: Traffic
) -> None:
    sites = [
        Site(host="a", workers=workers, up=up, down=down),
        Site(host="b", workers=others, up=other_up, down=other_down),
    ]
    best = min(exchange_seconds((part / 100, 1 - part / 100), sites, traffic) for part in range(101))
    least = sharding.MIN_GAIN_S
    assert decide(sites, traffic).seconds <= best / (1 - sharding.MIN_GAIN - sharding.MIN_PART) + least


def test_a_slow_link_gets_a_small_part_or_none() -> None:
    slow, others = host("nas", 0, FAST / 20), [host(name) for name in "abc"]
    parts = decide([*others, slow], TRAFFIC).parts
    assert sum(parts[:3]) == pytest.approx(1)
    faster = decide([*others, host("nas", 0, FAST / 2)], TRAFFIC).parts
    assert 0 < faster[3] < min(faster[:3])


def test_a_host_without_memory_or_out_of_reach_holds_no_more_than_it_can() -> None:
    sites = [host("a", memory=TRAFFIC.held // 5), host("b"), host("c", reachable=False)]
    decision = decide(sites, TRAFFIC)
    assert decision.parts == pytest.approx((0.2, 0.8, 0.0))
    assert sharding.reasons(decision, sites, TRAFFIC)[-1] == "c holds no shard: not all others can connect to it"


def test_too_little_memory_on_all_hosts_together_is_said() -> None:
    with pytest.raises(ValueError, match=r"needs 0.41 GB, and its hosts have 0.20"):
        decide([host("a", memory=TRAFFIC.held // 4), host("b", memory=TRAFFIC.held // 4)], TRAFFIC)


def test_two_hosts_need_one_shard_only() -> None:
    sites = [host("a"), host("b")]
    assert decide(sites, TRAFFIC).parts == (1.0, 0.0)
    assert decide(sites, TRAFFIC).seconds == pytest.approx(4 * PARAMETERS / FAST)
    assert "one shard of the parameter server, on a" in sharding.reasons(decide(sites, TRAFFIC), sites, TRAFFIC)[0]
    assert decide(sites, TRAFFIC, 2).parts == pytest.approx((0.5, 0.5))


@given(st.integers(1, 10**8), st.integers(2, 12))
def test_every_shard_of_a_small_buffer_has_chunks(numel: int, shards: int) -> None:
    size = chunk_numbers(numel, shards)
    assert 1 <= size <= 1 << 17
    if 100 * shards < numel < 10**6:
        layout = plan_layout([numel], [1.0] * shards, size)
        assert min(len(chunks) for chunks in layout.by_shard) >= 3


@pytest.mark.parametrize(
    ("up_a", "down_a", "up_b", "down_b", "seconds"),
    [
        (1.0, 1e9, 1e9, 1e9, 2 * 30 * 0.75 + 1 * 10 * 0.25),  # its gradients to b, its weights to b's worker
        (1e9, 1.0, 1e9, 1e9, 2 * 10 * 0.75 + 1 * 30 * 0.25),  # weights from b, the gradient of b's worker
        (1e9, 1e9, 1.0, 1e9, 1 * 30 * 0.25 + 2 * 10 * 0.75),
        (1e9, 1e9, 1e9, 1.0, 1 * 10 * 0.25 + 2 * 30 * 0.75),
        (0.5, 1e9, 1.0, 1e9, (2 * 30 * 0.75 + 1 * 10 * 0.25) / 0.5),
    ],
)
def test_a_step_takes_what_its_busiest_direction_carries(
    up_a: float, down_a: float, up_b: float, down_b: float, seconds: float
) -> None:
    sites = [
        Site(host="a", workers=2, up=up_a, down=down_a),
        Site(host="b", workers=1, up=up_b, down=down_b),
    ]
    traffic = Traffic(gradient=30, weights=10, held=1)
    assert exchange_seconds((0.25, 0.75), sites, traffic) == pytest.approx(seconds)


def test_the_wanted_count_of_shards_is_on_the_hosts_with_the_best_links_and_each_is_worth_one() -> None:
    sites = [host("slow", 1, FAST / 100), host("a"), host("b", 0, FAST * 2), host("c")]
    parts = decide(sites, TRAFFIC, 3).parts
    assert parts[0] == 0.0
    assert all(part >= sharding.MIN_PART - 1e-9 for part in parts[1:])
    assert decide([host(name) for name in "abc"], TRAFFIC, 2).parts == pytest.approx((0.5, 0.5, 0.0))
    every = decide(sites, TRAFFIC, 4).parts
    assert every[0] == pytest.approx(sharding.MIN_PART, abs=1e-6)
    with pytest.raises(ValueError, match="5 shards need 5 hosts that all others can connect to"):
        decide(sites, TRAFFIC, 5)


def test_several_shards_have_to_gain_a_tenth_and_two_milliseconds() -> None:
    three = [host(name) for name in "abc"]
    small = Traffic(gradient=10_000, weights=10_000, held=1)  # a tenth is gained, of a millisecond
    assert decide(three, small).parts == (1.0, 0.0, 0.0)
    assert decide(three, TRAFFIC).parts != (1.0, 0.0, 0.0)
    # The first host's link is so much faster that next to nothing is gained by the others'.
    near = [host("a", 1, FAST * 40), host("b", 1, FAST), host("c", 1, FAST)]
    assert decide(near, TRAFFIC).parts == (1.0, 0.0, 0.0)
    assert decide([host("a", memory=TRAFFIC.held // 2), host("b")], TRAFFIC).parts == pytest.approx((0.5, 0.5))


def test_the_plan_says_of_each_host_without_a_shard_why() -> None:
    sites = [host("a"), host("b"), host("c"), host("nas", 0, FAST / 20), host("pi", 0, FAST * 0.6)]
    decision = sharding.Decision(parts=(0.5, 0.3, 0.2, 0.0, 0.0), seconds=1.5, alone_s=2.0)
    said = sharding.reasons(decision, sites, TRAFFIC)
    assert "parameter server on 3 hosts: a 50%, b 30%, c 20%; predicted exchange of a step: 1.5 s, 2 s" in said[0]
    assert said[1:] == ("nas holds no shard: its link is slow", "pi holds no shard: it would not make a step shorter")
    alone = sharding.Decision(parts=(1.0, 0.0, 0.0, 0.0, 0.0), seconds=2.0, alone_s=2.0)
    assert len(sharding.reasons(alone, sites, TRAFFIC)) == 1
    full = [host("a", memory=TRAFFIC.held // 2), host("b"), host("c", memory=2 * TRAFFIC.held)]
    half = sharding.Decision(parts=(0.5, 0.5, 0.0), seconds=1.0, alone_s=2.0)
    assert sharding.reasons(half, full, TRAFFIC)[1:] == (
        "a holds 50%: its memory has no room for more",
        "c holds no shard: it would not make a step shorter",
    )
