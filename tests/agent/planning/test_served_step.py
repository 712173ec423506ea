"""The bound of a step's exchange, which is taken of many workers, and what a step adds to it. By hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from remote_agent.planning.exchange import Exchanged, Sender
from remote_agent.planning.served_step import MAX_SIMULATED, SIMULATED, copied_every, served_step, source
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import Way
from tests.agent.planning.fleets import LINK_1G, host, survey

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
    seconds, _ = step(fleet(), {"a": 0.75, "b": 0.25})
    assert seconds == pytest.approx((2 * 0.75 + 0.25) * GRADIENT_S)


def test_it_is_no_less_than_computing_the_optimizers_step_and_the_handling_of_all_gradients() -> None:
    assert step(fleet(), {"a": 1.0}, done=5.0)[0] == pytest.approx(5.0)
    seconds, exchanged = step(fleet(update_s=1e-6), {"a": 0.75, "b": 0.25})
    assert (seconds, exchanged.update_s, exchanged.handling_s) == pytest.approx((0.75, 0.75, 0.0))
    seconds, exchanged = step(fleet(touch_s=1e-6), {"a": 0.75, "b": 0.25}, idle="c")
    assert (seconds, exchanged.handling_s) == pytest.approx((2 * 0.75, 2 * 0.75))


def test_on_one_computer_nothing_passes_a_link() -> None:
    alone = survey([host(name, 40, computer="tower") for name in "ab"], MILLION)
    assert set(step(alone, {"a": 1.0})[1].busy.values()) == {0.0}


def test_of_simulated_steps_what_one_of_them_took_is_said() -> None:
    alone = survey([host("a", 40, update_s=2e-6, touch_s=1e-6)], MILLION)
    seconds, exchanged = step(alone, {"a": 1.0}, done=1.0, bound=False)
    assert (exchanged.update_s, exchanged.handling_s) == pytest.approx((2.0, 1.0))
    assert seconds == pytest.approx(1.0 + 2.0 + 1.0 / 8), "one of eight chunks is handled before the optimizer steps"


def test_the_source_says_up_to_how_many_workers_chunks_are_simulated() -> None:
    senders = [Sender(host="a", done=1.0)] * (MAX_SIMULATED + 1)
    assert source(senders[1:]) == SIMULATED
    assert source(senders) == "the busiest link"


def test_a_copy_is_made_after_as_many_steps_as_are_made_again_in_a_second_and_at_least_one() -> None:
    assert [copied_every(seconds) for seconds in (0.3, 0.5, 2.0, 0.0)] == [3, 2, 1, 1_000_000]
