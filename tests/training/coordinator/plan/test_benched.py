"""A device without a share is tried again: seldom, and for next to nothing."""

from __future__ import annotations

import pytest

from remote_agent.training.coordinator.plan.benched import (
    MAX_DOUBLINGS,
    MIN_REST_S,
    TRIAL_COST,
    TRIAL_STEPS,
    Benched,
    trial_cut,
)


def steps_of(rest: Benched, step_s: float, trial_s: float) -> int:
    """Steps that a rest lasts."""
    while not rest.is_over(step_s, trial_s):
        rest = rest.after_step()
    return rest.steps


def test_a_rest_lasts_some_seconds_and_longer_where_a_trial_costs_more() -> None:
    assert steps_of(Benched(), 0.1, 0.0) == round(MIN_REST_S / 0.1)
    steps = steps_of(Benched(), 0.1, 0.4)
    assert pytest.approx(TRIAL_COST * 0.1 * steps, abs=1.01 * TRIAL_COST * 0.1) == TRIAL_STEPS * (0.4 - 0.1)
    assert steps_of(Benched(), 20.0, 0.0) == 1, "no step, no rest"


def test_each_trial_in_vain_doubles_the_rest_up_to_an_end() -> None:
    rest, rests = Benched(), list[int]()
    for _ in range(MAX_DOUBLINGS + 2):
        rests.append(steps_of(rest, 0.1, 0.0))
        rest = rest.after_trial()
    assert rests == [100 * 2 ** min(number, MAX_DOUBLINGS) for number in range(MAX_DOUBLINGS + 2)]


def test_without_a_known_step_nothing_is_tried() -> None:
    assert not Benched(steps=10**9).is_over(0.0, 1.0)


def test_the_slice_of_a_trial_comes_from_the_largest_share() -> None:
    assert trial_cut((10, 0, 20), 1, 1) == (10, 1, 19)
    assert trial_cut((10, 0, 20), 1, 2) == (10, 2, 18)
    assert trial_cut((1, 0, 1), 1, 1) is None
    assert trial_cut((3, 0), 1, 2) is None
    assert trial_cut((4, 0), 1, 2) == (2, 2)
