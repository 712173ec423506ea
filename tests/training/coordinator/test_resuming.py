"""What a run that goes on from a checkpoint says of itself."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote_agent.training.checkpoint.optimizer_state import TrainingState
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import resuming
from remote_agent.training.errors import JobError


def test_settings_that_changed_are_said() -> None:
    found: Any = SimpleNamespace(config=asdict(TrainingConfig(learning_rate=1e-3)), path=Path("step-5"))
    same = resuming.notes(found, TrainingConfig(learning_rate=1e-3), TrainingState(), 2)
    assert same == ()
    changed = TrainingConfig(learning_rate=5e-4, num_iterations=900)
    assert resuming.notes(found, changed, TrainingState(), 2) == (
        "num_iterations is 900, it was 100",
        "learning_rate is 0.0005, it was 0.001",
    )


def test_figures_of_another_metric_are_left_out() -> None:
    found: Any = SimpleNamespace(config={"keep_best": ""}, watched=((100, 2.3), (300, 0.9)))
    assert resuming.watched(None, TrainingConfig(), "") == ()
    assert resuming.watched(found, TrainingConfig(), "min") == found.watched
    assert resuming.watched(found, TrainingConfig(keep_best="min:val_loss"), "") == found.watched
    accuracy = TrainingConfig(keep_best="max:accuracy")
    assert resuming.watched(found, accuracy, "") == ()
    with pytest.raises(JobError, match="went by val_loss so far, and keep_best=max:accuracy"):
        resuming.watched(found, accuracy, "max")
