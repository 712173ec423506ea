"""The simulated exchange in cases small enough to be added up by hand."""

from __future__ import annotations

from typing import Any

import pytest

from remote_agent.planning.exchange import Exchange, Exchanged, Sender
from remote_agent.planning.survey import Survey
from tests.agent.planning.fleets import host, survey

RATE = 1e6
CHUNK_S = 4 * 1000 / RATE
"""Of 1,000 numbers in fp32 over one link."""


def pair(parameters: int = 1000, *, a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> Survey:
    return survey([host("a", 40, RATE, **a or {}), host("b", 40, RATE, **b or {})], parameters)


def exchanged(of: Survey, *senders: Sender, parts: dict[str, float] | None = None) -> Exchanged:
    return Exchange(of, parts or {"a": 1.0}, "fp32").step(senders, (0.0,) * len(senders))


def test_the_weights_are_there_after_the_last_gradient_the_update_and_the_way_back() -> None:
    of = pair(a={"update_s": 2e-6})
    found = exchanged(of, Sender(host="a", done=1.0), Sender(host="b", done=2.0))
    assert found.ends == pytest.approx((2.0 + CHUNK_S + 0.002, 2.0 + CHUNK_S + 0.002 + CHUNK_S))
    assert found.update_s == pytest.approx(0.002)
    assert found.busy["the link of b (out)"] == found.busy["the link of a (in)"] == pytest.approx(CHUNK_S)
    assert found.busy["the link of a (out)"] == pytest.approx(CHUNK_S)


def test_a_worker_without_a_slice_sends_nothing_and_gets_the_weights() -> None:
    found = exchanged(pair(), Sender(host="a", done=1.0), Sender(host="b", done=0.0, has_slice=False))
    assert found.ends == pytest.approx((1.0, 1.0 + CHUNK_S))
    assert found.busy["the link of b (out)"] == 0.0


def test_a_step_begins_when_the_one_before_has_ended_on_each_worker() -> None:
    exchange = Exchange(pair(), {"a": 1.0}, "fp32")
    senders = (Sender(host="a", done=1.0), Sender(host="b", done=1.0))
    first = exchange.step(senders, (0.0, 0.0))
    second = exchange.step(senders, first.ends)
    assert second.ends[0] == pytest.approx(first.ends[1] + 1.0 + CHUNK_S)


def test_the_lag_of_a_message_is_that_of_the_farther_link_and_of_the_slower_host() -> None:
    of = pair(a={"latency_s": 0.01, "turn_s": 0.3}, b={"latency_s": 0.04, "turn_s": 0.1})
    found = exchanged(of, Sender(host="a", done=0.0), Sender(host="b", done=0.0))
    # There: half a turn of its own, then of the link and the slower host; the shard's thread takes half a turn a chunk.
    own, other = 0.3 / 2, (0.04 + 0.3) / 2
    shard_s = max(own + 0.15, CHUNK_S + other) + 0.15
    assert found.ends == pytest.approx((shard_s + own, shard_s + CHUNK_S + other))
    assert found.handling_s == pytest.approx(2 * 0.15)


def test_of_several_shards_the_one_that_works_longest_counts() -> None:
    of = pair(2000, a={"update_s": 1e-6, "touch_s": 5e-6}, b={"update_s": 3e-6, "touch_s": 2e-6})
    senders = (Sender(host="a", done=0.0), Sender(host="b", done=0.0))
    found = exchanged(of, *senders, parts={"a": 0.5, "b": 0.5})
    assert found.update_s == pytest.approx(1000 * 3e-6)
    assert found.handling_s == pytest.approx(2 * 1000 * 5e-6)
