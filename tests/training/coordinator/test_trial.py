"""How many steps are tried before a plan is told."""

from __future__ import annotations

import dataclasses

from remote_agent.planning.survey import Survey
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.trial import CERTAIN_STEPS, SKIPPED, is_certain, to_try, used
from remote_agent.training.deadlines import TRIAL_S
from tests.agent.planning.fleets import host, survey


def _fleet(speed: float) -> Survey:
    return survey([host("a", speed), host("b", speed)], batch=20)


def test_steps_that_are_alike_need_no_more_and_one_that_met_something_else_changes_nothing() -> None:
    alike = [0.100, 0.101, 0.099, 0.1, 0.102, 0.098]
    assert len(alike) == CERTAIN_STEPS
    assert is_certain(alike)
    assert is_certain([*alike, 5.0])
    assert not is_certain(alike[:-1]), "too few to say how they spread"


def test_steps_that_differ_are_tried_until_their_median_is_known() -> None:
    spread = [0.05, 0.15, 0.1, 0.06, 0.14, 0.11, 0.09]
    assert not is_certain(spread)
    assert is_certain([0.08, 0.12, 0.1, 0.1, 0.1, 0.1, 0.09, 0.11] * 3)


def test_only_short_steps_of_exact_ways_that_fit_are_tried() -> None:
    config = TrainingConfig(batch_size=20, strategy="sync")
    assert to_try(config, _fleet(1000.0)) is not None
    assert to_try(config, _fleet(20 / TRIAL_S)) is None, "they take too long"
    assert to_try(dataclasses.replace(config, strategy="local_sgd"), _fleet(1000.0)) is None
    assert to_try(dataclasses.replace(config, batch_size=20), survey([host("a", 1.0, max_batch=2)], batch=20)) is None


def test_steps_that_take_far_longer_than_predicted_count_though_they_are_few() -> None:
    made = [3.0, 2.0, 1.0, 1.5]
    assert used(made) == made[SKIPPED:]
    assert used(made[: SKIPPED + 1]) == made[SKIPPED : SKIPPED + 1]
    assert used(made[:SKIPPED]) == made[:SKIPPED]
    assert not used([])
