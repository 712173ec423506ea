"""Which evaluation is the best one, and when there were enough in vain."""

from __future__ import annotations

import pytest

from remote_agent.goals import Goal, up_to
from remote_agent.settings import TrainingConfig, check


@pytest.mark.parametrize(
    ("setting", "metric", "sign"),
    [
        ("", "val_loss", 1),
        ("val_loss", "val_loss", 1),
        ("accuracy", "accuracy", -1),
        ("max:f1", "f1", -1),
        ("min:f1", "f1", 1),
        ("max:val_loss", "val_loss", -1),
    ],
)
def test_a_name_says_what_is_better_or_its_prefix_does(setting: str, metric: str, sign: int) -> None:
    assert Goal.of(setting) == Goal(metric, sign)


@pytest.mark.parametrize("setting", ["f1", "least:f1", "max:", "auc"])
def test_a_metric_that_does_not_say_what_is_better_is_refused_before_anything_starts(setting: str) -> None:
    (mistake,) = check({"keep_best": setting})
    assert "max:" in mistake


def test_early_stopping_needs_a_metric() -> None:
    assert "keep_best" in check({"early_stopping": "3", "keep_best": ""})[0]
    assert TrainingConfig(early_stopping=3, keep_best="val_loss").early_stopping == 3


def test_the_first_of_the_best_is_the_best_and_what_is_no_number_never_is() -> None:
    watched = ((10, None), (20, 0.5), (30, 0.4), (40, None), (50, 0.4), (60, 0.6))
    assert Goal("loss", 1).best(watched) == (30, 0.4)
    assert Goal("loss", 1).without_gain(watched) == 3
    assert Goal("accuracy", -1).best(watched) == (60, 0.6)
    assert Goal("loss", 1).best(((10, None),)) is None
    assert Goal("loss", 1).without_gain(((10, None), (20, None))) == 2


def test_going_back_to_a_step_forgets_what_came_after_it() -> None:
    assert up_to(((10, 1.0), (20, None), (30, 2.0)), 20) == ((10, 1.0), (20, None))
