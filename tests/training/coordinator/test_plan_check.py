"""A run's plan follows its devices on real processes; on a simulated clock, with links: ``tests/simulation``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import Launch

pytestmark = [pytest.mark.ray]

SAMPLE_S = 0.005
"""Of computing, so that other work on this computer is a small part of it."""

CALM_STEPS, STEPS, MOST_STEPS = 30, 30, 80
"""Other work on this computer can have the plan corrected just before: then it takes up to twice as many."""

JOB = f"""
import os, pathlib, time
import torch

class Job:
    def create_model(self):
        return torch.nn.Linear(4, 1)

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate)

    def create_data(self):
        return torch.utils.data.TensorDataset(torch.randn(96, 4), torch.randn(96, 1))

    def loss(self, model, batch):
        x, y = batch
        slow = os.environ.get("TEST_HOST") == "b" and pathlib.Path("SLOW").exists()
        time.sleep(len(x) * {SAMPLE_S} / (0.3 if slow else 1.0))
        return ((model(x) - y) ** 2).mean()
"""


@pytest.mark.long
def test_shares_and_prediction_follow_a_device_that_runs_at_three_tenths(launch: Launch, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    run = launch(JOB.replace("SLOW", str(slow)), batch_size=48, num_iterations=CALM_STEPS + MOST_STEPS)
    run.until("step", CALM_STEPS)
    begun = run.of_kind("step")[-1]["step"]
    slow.touch()
    code, errors = run.finish()
    assert code == 0, errors

    def first(kind: str, field: str, text: str) -> dict[str, Any]:
        found = [event for event in run.of_kind(kind) if event["step"] > begun and text in event[field]]
        assert found, [event for event in run.events() if event["kind"] in ("rebalanced", "replanned", "worker_slow")]
        return found[0]

    assert first("rebalanced", "reason", "the devices' speeds changed")["step"] <= begun + STEPS
    replanned = first("replanned", "reason", "b/cpu runs at 3")
    assert replanned["step"] <= begun + 2 * STEPS
    last = run.of_kind("step")[-1]
    assert last["predicted_s"] == pytest.approx(replanned["predicted_step_s"], rel=0.3)
    assert last["planned_s"] == run.of_kind("plan")[0]["predicted_step_s"]
