"""What a step is predicted to take."""

from __future__ import annotations

from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan.run_plan import predicted_step_s


def test_the_exchange_counts_unless_the_next_step_is_computed_meanwhile() -> None:
    assert predicted_step_s(TrainingConfig(), 0.5, 2.0) == 2.5
    overlap = TrainingConfig(strategy="local_sgd", overlap=True)
    assert predicted_step_s(overlap, 0.5, 2.0) == 2.0
    assert predicted_step_s(overlap, 3.0, 2.0) == 3.0
