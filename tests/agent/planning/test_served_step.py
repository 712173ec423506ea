"""The bound of a step's exchange, which is taken of many workers, and what a step adds to it. By hand."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import pytest

from remote_agent.planning.exchange import Exchange, Exchanged, Sender
from remote_agent.planning.served_step import MAX_SIMULATED, copied_every, served_step
from remote_agent.planning.survey import Survey, wire_bytes
from remote_agent.planning.ways import Way
from tests.agent.planning.fleets import LINK_1G, LINK_100M, host, survey

MILLION = 1_000_000
GRADIENT_S = 4 * MILLION / LINK_1G


def step(
    of: Survey, parts: Mapping[str, float], *, idle: str = "", done: float = 0.0, bound: bool = True
) -> tuple[float, Exchanged]:
    senders = [Sender(host=name, done=done, has_slice=name not in idle) for name in of.names]
    return served_step(of, Way(strategy="sync", hosts=of.names), parts, senders, bound=bound)


def fleet(**more: float) -> Survey:
    return survey([host(name, 40, **more) for name in "abc"], MILLION)


def test_of_each_link_it_is_what_a_shard_gets_and_gives_and_its_host_pushes_and_pulls_elsewhere() -> None:
    seconds, exchanged = step(fleet(), {"a": 1.0})
    assert seconds == pytest.approx(2 * GRADIENT_S), "two others push to a"
    assert sorted(exchanged.busy.values()) == pytest.approx([GRADIENT_S] * 4 + [2 * GRADIENT_S] * 2)
    _, exchanged = step(fleet(), {"a": 1.0}, idle="c")
    assert sorted(exchanged.busy.values()) == pytest.approx([0.0, *[GRADIENT_S] * 4, 2 * GRADIENT_S]), "c only pulls"
    senders = [Sender(host=name, done=0.0) for name in "ab"]
    _, exchanged = served_step(fleet(), Way(strategy="sync", hosts=("a", "b")), {"c": 1.0}, senders, bound=True)
    assert sorted(exchanged.busy.values()) == pytest.approx([GRADIENT_S] * 4 + [2 * GRADIENT_S] * 2), "c has no worker"
    seconds, _ = step(fleet(), {"a": 0.75, "b": 0.25})
    assert seconds == pytest.approx((2 * 0.75 + 0.25) * GRADIENT_S)


def test_it_is_no_less_than_computing_the_optimizers_step_and_the_handling_of_all_gradients() -> None:
    assert step(fleet(), {"a": 1.0}, done=5.0)[0] == pytest.approx(5.0)
    seconds, exchanged = step(fleet(update_s=1e-6), {"a": 0.75, "b": 0.25})
    assert (seconds, exchanged.update_s, exchanged.handling_s) == pytest.approx((0.75, 0.75, 0.0))
    seconds, exchanged = step(fleet(touch_s=1e-6), {"a": 0.75, "b": 0.25}, idle="c")
    assert (seconds, exchanged.handling_s) == pytest.approx((2 * 0.75, 2 * 0.75))


def test_of_many_workers_the_exchange_begins_with_the_first_gradient_that_is_there_and_ends_with_a_turn() -> None:
    names = [f"h{number}" for number in range(MAX_SIMULATED + 1)]
    others, parts = MAX_SIMULATED, {"h0": 1.0}

    def seconds(
        streams: bool = True, slowest: float = 1.0, ready: tuple[float, ...] = (0.25, 1.0), **more: float
    ) -> float:
        hosts = [host(name, 40, turn_s=0.1 * (name == "h7"), **more) for name in names]
        of = survey(hosts, MILLION, ready=ready)
        senders = [Sender(host=name, done=1.0, streams=streams) for name in names[2:]]
        senders += [Sender(host="h0", done=slowest), Sender(host="h1", done=0.0, has_slice=False)]
        return served_step(of, Way(strategy="sync", hosts=of.names), parts, senders)[0]

    assert seconds() == pytest.approx(0.25 + others * GRADIENT_S + 0.1), "all others pull from h0"
    assert seconds(streams=False, slowest=0.8) == pytest.approx(0.2 + others * GRADIENT_S + 0.1), "that of h0 streams"
    assert seconds(ready=()) == pytest.approx(1.0 + others * GRADIENT_S + 0.1), "all gradients come at the end"
    assert seconds(slowest=9.0) == pytest.approx(9.1)
    assert seconds(update_s=2e-6) == pytest.approx(0.25 + 2.0 + 0.1)
    assert seconds(touch_s=1e-6) == pytest.approx(0.25 + others + 0.1), "h1 has no gradient"


def test_gradients_are_encoded_for_a_network_alone() -> None:
    way = Way(strategy="sync", hosts=("a", "b"), codec="int8")
    for computer, busiest in (("", wire_bytes("int8", MILLION) / LINK_1G), ("tower", 0.0)):
        of = survey([host(name, 40, computer=computer) for name in "ab"], MILLION)
        of = dataclasses.replace(of, codec_s={"int8": 1e-6})
        senders = [Sender(host=name, done=1.0) for name in "ab"]
        assert max(served_step(of, way, {"a": 1.0}, senders, bound=True)[1].busy.values()) == pytest.approx(busiest)
        encoding = served_step(of, way, {"a": 1.0}, senders)[1].update_s
        assert encoding == pytest.approx(1.0 if busiest else 0.0)


def test_a_step_takes_as_long_as_the_mean_of_many_of_which_those_after_a_copy_begin_at_once() -> None:
    """Of three steps the planner tells what a run of sixty takes, on most fleets to a hundredth."""
    off = sorted(abs(predicted / mean - 1) for predicted, mean in map(of_many_steps, range(20)))
    assert off[len(off) // 2] < 0.01
    assert off[-1] < 0.15


def of_many_steps(seed: int) -> tuple[float, float]:
    """Seconds of a step as predicted, and as they are on average, of a random fleet."""
    draw = random.Random(seed)
    rates = [draw.choice((LINK_1G, LINK_100M)) for _ in "abc"]
    of = survey([host(name, 40, rate) for name, rate in zip("abc", rates, strict=True)], draw.randrange(10**5, MILLION))
    parts = draw.choice(({"a": 1.0}, {"a": 0.5, "b": 0.5}, {"a": 0.2, "c": 0.8}))
    senders = [Sender(host=name, done=draw.uniform(0.05, 0.4), streams=False) for name in "abc"]
    predicted = served_step(of, Way(strategy="sync", hosts=of.names), parts, senders)[0]
    exchange, begins, made = Exchange(of, parts, "fp32"), (0.0,) * 3, 0
    while made < 60:
        for _ in range(copied_every(predicted)):
            begins, made = exchange.step(senders, begins).ends, made + 1
        begins = (max(begins),) * 3
    return predicted, begins[0] / made
