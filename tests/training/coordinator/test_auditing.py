"""Audits in real runs: a problem that shows later, random numbers not known by sample. Others: test_compatibility."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.ray

JOB = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional

CALLS = []


class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def create_data(self):
        x = torch.randn(96, 6, generator=torch.Generator().manual_seed(5))
        return x, x[:, :3].argmax(1)

    def loss(self, model, batch):
        out = model(batch[0])
        loss = functional.cross_entropy(out, batch[1])
        CALLS.append(len(batch[0]))
        CHANGE
        return loss
"""
LATER = "loss = loss * (1 + (len(CALLS) > 60) * len(CALLS) / 1000)"
SHARED = "loss = functional.cross_entropy(out * (torch.rand(1, 3) > 0.3), batch[1])"
DRAWS = """loss = functional.cross_entropy(out * torch.from_numpy(np.random.rand(len(out), 1)).float(), batch[1])"""
DRAWS_IN_TRAINING = f"""if model.training:
            {DRAWS}"""

BATCH, STEPS = 32, 8


def start(launch: Any, change: str, **more: Any) -> Any:
    settings = {"batch_size": BATCH, "num_iterations": STEPS, "seed": 3, "stream": "network", "rebalance": False}
    return launch(JOB.replace("CHANGE", change), "ab", **settings | more)


def trained(run: Any) -> None:
    assert run.finish() == (0, ""), run.events()[-1]
    assert [step["samples"] for step in run.of_kind("step")] == [BATCH] * STEPS


def refused(run: Any) -> dict[str, Any]:
    code, errors = run.finish()
    assert code == 1, errors
    assert "Traceback" not in errors
    event: dict[str, Any] = run.events()[-1]
    assert event["kind"] == "run_failed"
    return event


@pytest.mark.parametrize("change", [DRAWS, DRAWS_IN_TRAINING], ids=["always", "in-training"])
def test_random_numbers_that_are_not_known_by_sample_are_trained(launch: Any, change: str) -> None:
    trained(start(launch, change))


def test_what_begins_later_ends_the_run(launch: Any) -> None:
    event = refused(start(launch, LATER, num_iterations=100_000))
    assert "calls do not repeat" in event["cause"]
    assert event["cause"].startswith("after step ")


def test_one_dropout_mask_for_the_whole_batch_is_refused_and_trained_with_a_unit(launch: Any) -> None:
    assert "parts do not add up" in refused(start(launch, SHARED))["cause"]
    trained(start(launch, SHARED, unit=BATCH))
