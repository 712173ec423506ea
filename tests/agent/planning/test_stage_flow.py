"""Steps of pipelines with few stages and micro-batches, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from remote_agent.planning.channels import Network
from remote_agent.planning.stage_flow import Flow, StageLoad, flow
from remote_agent.planning.survey import Host


def stage(number: int, *, given: float = 0.0, in_flight: int = 9) -> StageLoad:
    """1 s forward, 2 s backward."""
    return StageLoad(host=f"h{number}", forward_s=1.0, backward_s=2.0, given=given, in_flight=in_flight)


def flown(
    stages: Sequence[StageLoad], micro_batches: int, *, rate: float = 0.0, latency: Mapping[str, float] | None = None
) -> Flow:
    hosts = tuple(Host(name=name, devices=(), up=rate, down=rate) for name in dict.fromkeys(s.host for s in stages))
    return flow(stages, micro_batches, Network(hosts, {}), latency)


def test_one_stage_does_one_micro_batch_after_the_other() -> None:
    assert flown([stage(0)], 4) == Flow(seconds=12.0, held=(1,))


def test_two_stages_work_at_the_same_time() -> None:
    # The second one: forward and backward from 1 to 4, and from 4 to 7. The first one's backwards: 4 to 6, 7 to 9.
    found = flown([stage(0), stage(1)], 2)
    assert (found.seconds, found.held) == (pytest.approx(9.0), (2, 1))


def test_no_more_are_begun_than_a_stage_may_hold() -> None:
    # The first stage's second forward is after its first backward: 6 to 7.
    found = flown([stage(0, in_flight=1), stage(1)], 2)
    assert (found.seconds, found.held) == (pytest.approx(12.0), (1, 1))


def test_where_both_can_be_done_forwards_and_backwards_take_turns() -> None:
    first = replace(stage(0), backward_s=1.0)
    second = replace(stage(1), forward_s=0.1, backward_s=0.1)
    # F1 F2 B1 F3 B2 F4 B3 B4: at no time more than two are held, though all might be.
    found = flown([first, second], 4)
    assert (found.seconds, found.held) == (pytest.approx(8.0), (2, 1))


def test_what_is_handed_on_takes_its_time_there_and_the_gradients_back() -> None:
    stages = [stage(0), stage(1, given=5.0), stage(2, given=30.0)]
    # 1, 0.5 on the link, 1, 3 on the link, 3, 3 back, 2, 0.5 back, 2
    assert flown(stages, 1, rate=10.0).seconds == pytest.approx(16.0)


def test_a_message_takes_half_of_the_longer_round_trip_each_way() -> None:
    stages = [stage(0), stage(1)]
    assert flown(stages, 1).seconds == pytest.approx(6.0)
    assert flown(stages, 1, latency={"h0": 0.5, "h1": 0.3}).seconds == pytest.approx(6.5)
    assert flown(stages, 1, latency={"h1": 0.3}).seconds == pytest.approx(6.3)
    assert flown(stages, 1, latency={"h0": 0.3}).seconds == pytest.approx(6.3)
    together = [stage(0), replace(stage(1, given=30.0), host="h0")]
    assert flown(together, 1, rate=10.0, latency={"h0": 0.5}).seconds == pytest.approx(6.0)


def test_a_stage_begins_when_it_has_its_weights() -> None:
    stages = [stage(0), replace(stage(1), before_s=5.0)]
    assert flown(stages, 1).seconds == pytest.approx(5.0 + 3.0 + 2.0)
    assert flown([replace(stage(0), before_s=4.0), stages[1]], 1).seconds == pytest.approx(4.0 + 1.0 + 3.0 + 2.0)
