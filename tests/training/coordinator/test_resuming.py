"""What a run that goes on from a checkpoint says of itself."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from remote_agent.training.checkpoint.optimizer_state import TrainingState
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator import resuming


def test_settings_that_changed_are_said() -> None:
    found: Any = SimpleNamespace(config=asdict(TrainingConfig(learning_rate=1e-3)), path=Path("step-5"))
    same = resuming.notes(found, TrainingConfig(learning_rate=1e-3), TrainingState(), 2)
    assert same == ()
    changed = TrainingConfig(learning_rate=5e-4, num_iterations=900)
    assert resuming.notes(found, changed, TrainingState(), 2) == (
        "num_iterations is 900, it was 100",
        "learning_rate is 0.0005, it was 0.001",
    )
