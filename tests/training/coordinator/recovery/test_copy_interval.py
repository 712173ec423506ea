"""How often the shards' state is copied: seldom enough to cost little, and often enough to lose little."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.planning.served_step import REPLAY_S
from remote_agent.training.coordinator.recovery import copy_interval as pace
from remote_agent.training.coordinator.recovery.copy_interval import CopyInterval

SECONDS = st.floats(min_value=1e-4, max_value=100)


@given(SECONDS, st.lists(SECONDS, min_size=2, max_size=6), SECONDS)
def test_copies_cost_no_more_of_the_time_and_of_the_link_than_they_may(
    step: float, held: list[float], sending: float
) -> None:
    known = CopyInterval(step_s=step, sending_s=sending)
    for seconds in held:
        known = known.after_copy(seconds)
    usual = min(held[-pace.COUNTED_STALLS :])
    assert usual <= 1.001 * pace.MAX_STALLED * known.steps * step
    assert sending <= 1.001 * pace.MAX_SENDING * known.steps * step


@given(SECONDS)
def test_free_copies_bound_the_steps_that_are_made_again(step: float) -> None:
    steps = CopyInterval(step_s=step).steps
    assert steps == 1 or steps * step <= REPLAY_S * 1.001
    assert (steps + 1) * step > REPLAY_S or math.isclose((steps + 1) * step, REPLAY_S)


@pytest.mark.parametrize("before", [(), (0.002,), (0.002, 0.003)])
def test_one_copy_that_met_with_something_else_does_not_put_off_the_next(before: tuple[float, ...]) -> None:
    """A shard whose copy was 120 steps old cost 29 s, since the first of all copies had met with a hiccup of 0.2 s."""
    known = CopyInterval(step_s=0.15, stalls=before)
    assert known.after_copy(0.2).steps == known.steps == 6


def test_copies_that_always_hold_training_up_are_made_less_often() -> None:
    known = CopyInterval(step_s=0.15)
    for _ in range(pace.COUNTED_STALLS):
        known = known.after_copy(0.2)
    assert known.steps == math.ceil(0.2 / pace.MAX_STALLED / 0.15)


def test_a_long_step_does_not_make_the_interval_short_and_a_shorter_one_counts_at_once() -> None:
    known = CopyInterval(step_s=0.1)
    assert known.after_step(5.0).step_s == pytest.approx(1.57)
    assert known.after_step(5.0).after_step(0.1).step_s == 0.1
    assert dataclasses.replace(known, step_s=0.0).steps > 1000, "nothing is known, and nothing is divided by it"


def test_how_much_longer_a_step_took_is_told_once_it_is_known_how_long_one_takes() -> None:
    pace = CopyInterval()
    assert pace.over(3.0) == 0.0
    pace = pace.after_step(1.0)
    assert (pace.over(3.0), pace.over(0.5)) == (2.0, 0.0)
