"""Predicted steps: equal to closed forms where these are exact, and never below what links and devices allow."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_agent.planning.simulator import predict
from remote_agent.planning.survey import Survey, wire_bytes
from remote_agent.planning.ways import COMPUTE, EXCHANGE, HANDLING, UPDATE, Way
from tests.agent.planning.fleets import BACKWARD, LINK_1G, LINK_100M, host, survey

MILLION = 1_000_000
BYTES = 4 * MILLION


def way(of: Survey, strategy: str = "sync", **more: object) -> Way:
    return Way(strategy=strategy, hosts=of.names, **more)  # type: ignore[arg-type]


def test_one_host_alone_computes_its_batch_and_exchanges_nothing() -> None:
    fleet = survey([host("a", 40, overhead_s=0.1, update_s=2e-9)])
    found = predict(fleet, way(fleet))
    assert found.term(COMPUTE) == pytest.approx(0.1 + 48 / 40)
    assert (found.term(EXCHANGE), found.term(UPDATE)) == (pytest.approx(0), pytest.approx(2e-9 * MILLION))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_equal_hosts_exchange_at_the_floor_where_all_gradients_come_at_once(count: int) -> None:
    fleet = survey([host(f"h{number}", 40) for number in range(count)], 20 * MILLION)
    found = predict(fleet, way(fleet))
    floor = 2 * (count - 1) / count * 20 * BYTES / LINK_1G
    assert found.term(EXCHANGE) == pytest.approx(floor, rel=0.02)


def test_one_shard_at_equal_links_is_pushed_and_pulled_by_all_others() -> None:
    fleet = survey([host("a", 40), host("b", 40), host("c", 40)])
    found = predict(fleet, way(fleet, shards=1))
    assert found.parts == {"a": 1.0}
    assert 2 * BYTES / LINK_1G <= found.term(EXCHANGE) <= 1.4 * 2 * BYTES / LINK_1G


def test_what_is_sent_while_backward_computes_is_hidden() -> None:
    slow = survey([host("a", 40), host("b", 40)])
    streamed = survey([host("a", 40), host("b", 40)], ready=BACKWARD)
    assert predict(streamed, way(streamed)).term(EXCHANGE) < 0.2 * predict(slow, way(slow)).term(EXCHANGE)


def test_a_chunk_leaves_when_the_last_of_its_gradients_is_there() -> None:
    early = tuple(0.5 if part != 7 else 1.0 for part in range(16))  # of one chunk, not its first part
    fleet = survey([host("a", 40, LINK_100M), host("b", 40, LINK_100M)], 100_000, ready=early)
    late = survey([host("a", 40, LINK_100M), host("b", 40, LINK_100M)], 100_000)
    assert predict(fleet, way(fleet)).seconds == pytest.approx(predict(late, way(late)).seconds)


def test_threads_and_processors_take_their_time_beside_the_links() -> None:
    """One chunk there and back between threads, and half of that and its numbers' time for each that a shard gets."""
    turn_s, touch_s, small = 0.002, 3e-9, 100_000
    hosts = [host(f"h{number}", 40, turn_s=turn_s, touch_s=touch_s) for number in range(2)]
    fleet, free = survey(hosts, small), survey([host(f"h{number}", 40) for number in range(2)], small)
    one = survey(hosts[:1], small)
    assert predict(one, way(one)).term(HANDLING) == pytest.approx(turn_s + turn_s / 2 + touch_s * small)
    assert predict(free, way(free)).term(HANDLING) == 0
    longer = predict(fleet, way(fleet)).seconds - predict(free, way(free)).seconds
    each_s = turn_s / 2 + touch_s * small
    assert turn_s + each_s - 1e-9 <= longer <= turn_s + 2 * each_s + 1e-9  # but for rounding
    ring = predict(fleet, way(fleet, "allreduce"))
    assert ring.term(HANDLING) == pytest.approx(2 * turn_s / 2 + 2 * touch_s * small)
    assert predict(one, way(one, "allreduce")).term(HANDLING) == 0


def test_a_far_link_is_paid_for_by_each_message_of_a_ring_and_once_by_a_streamed_step() -> None:
    near, far = (survey([host(f"h{n}", 40, latency_s=delay) for n in range(3)], 100_000) for delay in (0.0, 0.01))
    assert predict(far, way(far)).seconds - predict(near, way(near)).seconds == pytest.approx(0.01, rel=0.01)
    rings = [predict(fleet, way(fleet, "allreduce")).seconds for fleet in (near, far)]
    assert rings[1] - rings[0] == pytest.approx(2 * 2 * 0.01 / 2)


def test_clipping_waits_for_all_gradients_before_any_weights_go_back() -> None:
    hosts = [host("a", 40, LINK_100M), host("b", 40, LINK_100M)]
    free, clipped = survey(hosts), survey(hosts, clipped=True)
    ratio = predict(clipped, way(clipped)).term(EXCHANGE) / predict(free, way(free)).term(EXCHANGE)
    assert ratio == pytest.approx(2, rel=0.15)  # one direction at a time


def test_a_half_duplex_link_carries_one_direction_at_a_time() -> None:
    full = survey([host("a", 40), host("b", 40)])
    half = survey([host("a", 40), host("b", 40, both=LINK_1G)])
    for strategy in ("sync", "allreduce"):
        twice = predict(half, way(half, strategy)).term(EXCHANGE)
        assert twice == pytest.approx(2 * predict(full, way(full, strategy)).term(EXCHANGE), rel=0.15)


def test_hosts_on_one_medium_share_it() -> None:
    hosts = [host(f"h{number}", 40, medium="wifi") for number in range(4)]
    shared = Survey(job="x", work=survey(hosts).work, hosts=tuple(hosts), call_s=0.0, media={"wifi": LINK_1G})
    apart = survey([host(f"h{number}", 40) for number in range(4)])
    assert predict(shared, way(shared)).term(EXCHANGE) > 3 * predict(apart, way(apart)).term(EXCHANGE)


def test_a_ring_moves_its_part_of_the_gradient_and_steps_on_every_device() -> None:
    fleet = survey([host("a", 40, step_s=0.01), host("b", 40, LINK_100M, step_s=0.2), host("c", 40)])
    found = predict(fleet, way(fleet, "allreduce"))
    assert found.term(EXCHANGE) == pytest.approx(2 * 2 / 3 * BYTES / LINK_100M)
    assert found.term(UPDATE) == pytest.approx(0.2)


@pytest.mark.parametrize("devices", [2, 4])
def test_devices_of_one_host_are_one_peer_in_a_ring(devices: int) -> None:
    turn_s, touch_s = 0.002, 3e-9
    one, more = (
        survey([host("a", 40, LINK_100M, devices=count, turn_s=turn_s, touch_s=touch_s), host("b", 40), host("c", 40)])
        for count in (1, devices)
    )
    before, found = (predict(fleet, way(fleet, "allreduce")) for fleet in (one, more))
    assert found.term(EXCHANGE) == before.term(EXCHANGE) == pytest.approx(2 * 2 / 3 * BYTES / LINK_100M)
    # On the host: a ring of its devices and what follows from the first to the others.
    longer = (2 + 1) * (devices - 1) * turn_s / 2 + 2 * touch_s * MILLION
    assert found.term(HANDLING) - before.term(HANDLING) == pytest.approx(longer)


def test_devices_of_one_host_alone_are_one_ring_and_use_no_link() -> None:
    turn_s, touch_s = 0.002, 3e-9
    without = host("b", 40, LINK_100M, devices=0, latency_s=0.5)  # it could hold a shard
    fleet = survey([host("a", 40, devices=3, turn_s=turn_s, touch_s=touch_s), without])
    found = predict(fleet, way(fleet, "allreduce"))
    assert found.term(EXCHANGE) == 0
    assert found.term(HANDLING) == pytest.approx(2 * 2 * turn_s / 2 + 2 * touch_s * MILLION)


@pytest.mark.parametrize("strategy", ["sync", "local_sgd"])
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_of_one_host_send_one_gradient_and_get_the_weights_once(strategy: str, devices: int) -> None:
    one, more = (
        survey([host("a", 40, LINK_100M, devices=count), host("b", 40, LINK_100M), host("c", 40, LINK_100M)])
        for count in (1, devices)
    )
    before, found = (predict(fleet, way(fleet, strategy)) for fleet in (one, more))
    assert found.parts == pytest.approx(before.parts)
    assert found.link_s == pytest.approx(before.link_s, rel=0.01)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_round_is_as_many_local_steps_as_fit_into_the_fastest_ones_time(overlap: bool) -> None:
    fleet = survey([host("a", 40), host("b", 20)])
    found = predict(fleet, way(fleet, "local_sgd", local_steps=10, local_batch=4, overlap=overlap))
    assert dict(found.shares) == {"a/0": 40, "b/0": 20}
    exchange = BYTES / LINK_1G  # 2 (n - 1) / n
    if overlap:
        assert found.seconds == pytest.approx(1.0)
    else:
        assert found.term(EXCHANGE) == pytest.approx(exchange, rel=0.25)


@settings(max_examples=60, deadline=None)
@given(
    speeds=st.lists(st.floats(1, 100), min_size=1, max_size=5),
    rates=st.lists(st.sampled_from([LINK_100M, 4e7, LINK_1G]), min_size=5, max_size=5),
    parameters=st.integers(1_000, 20_000_000),
    batch=st.integers(5, 200),
    streams=st.booleans(),
    codec=st.sampled_from(["fp32", "bf16", "int8"]),
)
def test_a_step_sums_up_and_is_never_below_its_bound(
    speeds: list[float], rates: list[float], parameters: int, batch: int, streams: bool, codec: str
) -> None:
    hosts = [host(f"h{number}", speed, rates[number]) for number, speed in enumerate(speeds)]
    fleet = survey(hosts, parameters, batch, ready=BACKWARD if streams else ())
    for strategy in ("sync", "allreduce", "local_sgd"):
        found = predict(fleet, way(fleet, strategy, codec=codec if strategy != "allreduce" else "fp32"))
        assert found.seconds == pytest.approx(sum(term.seconds for term in found.terms))
        assert all(term.seconds >= 0 for term in found.terms)
        assert sum(found.shares.values()) == found.samples
        assert found.seconds >= found.term(COMPUTE)
        assert found.speed <= 1.001 * sum(speeds)
        if found.parts:
            assert sum(found.parts.values()) == pytest.approx(1)
        if strategy == "sync":
            bound = predict(fleet, way(fleet, strategy, codec=codec), bound=True)
            assert bound.seconds <= 1.01 * found.seconds
            assert found.seconds - found.term(COMPUTE) <= 4 * wire_bytes(codec, parameters) * len(hosts) / min(rates)
