"""What a run that goes on from a checkpoint says of itself."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from remote_agent.goals import Watched
from remote_agent.training.checkpoint.checkpoint import Checkpoint
from remote_agent.training.checkpoint.optimizer_state import TrainingState
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import resuming


def checkpoint_of(config: TrainingConfig, watched: Watched = ()) -> Checkpoint:
    return Checkpoint(path=Path("step-5"), step=5, position=40, seed=0, config=asdict(config), watched=watched)


def test_settings_that_changed_are_said() -> None:
    found = checkpoint_of(TrainingConfig(learning_rate=1e-3))
    same = resuming.notes(found, TrainingConfig(learning_rate=1e-3), TrainingState(), 2)
    assert same == ()
    changed = TrainingConfig(learning_rate=5e-4, num_iterations=900)
    assert resuming.notes(found, changed, TrainingState(), 2) == (
        "num_iterations is 900, it was 100",
        "learning_rate is 0.0005, it was 0.001",
    )


def test_figures_of_another_metric_are_left_out_and_that_is_said() -> None:
    losses = checkpoint_of(TrainingConfig(), ((3, 2.3), (5, 1.9)))
    same, other = TrainingConfig(keep_best="min:val_loss"), TrainingConfig(keep_best="max:accuracy")
    assert resuming.watched(losses, same) == losses.watched
    assert not any("evaluations" in note for note in resuming.notes(losses, same, TrainingState(), 2))
    assert resuming.watched(losses, other) == ()
    assert resuming.watched(None, other) == ()
    assert "the evaluations before are left out: they were compared by val_loss" in resuming.notes(
        losses, other, TrainingState(), 2
    )


def test_the_same_metric_in_the_other_direction_is_another_one() -> None:
    found = checkpoint_of(TrainingConfig(keep_best="min:score"), ((5, 1.9),))
    assert resuming.watched(found, TrainingConfig(keep_best="max:score")) == ()
