"""An audit in real runs: what only prints or counts is trained, and what no division among workers keeps is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remote_agent.training.config import TrainingConfig
from tests.training import plain

pytestmark = pytest.mark.ray

JOB = """
import logging
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LOG = logging.getLogger("job")
CALLS = []


class Job:
    def __init__(self):
        self.calls, self.meter, self.began = 0, [], time.time()

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
        self.calls += 1
        CALLS.append(len(batch[0]))
        CHANGE
        return loss
"""
COUNTS = """self.meter.append(loss.item())
        LOG.info("call %d: %.3f, %.1f s", self.calls, sum(self.meter) / len(self.meter), time.time() - self.began)"""
RAMP = "loss = loss * min(1.0, len(CALLS) / 1000)"
LATER = "loss = loss * (1 + (len(CALLS) > 60) * len(CALLS) / 1000)"
CONTRAST = """out = functional.normalize(out, dim=1)
        loss = functional.cross_entropy(out @ out.T / 0.1, torch.arange(len(out)))"""
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


@pytest.mark.parametrize("strategy", ["sync", "allreduce"])
def test_counters_meters_and_logs_in_loss_are_trained_as_in_a_plain_loop(
    launch: Any, tmp_path: Path, strategy: str
) -> None:
    run = start(launch, COUNTS, strategy=strategy)
    trained(run)
    config = TrainingConfig(batch_size=BATCH, num_iterations=STEPS, seed=3)
    job = plain.job_of(JOB.replace("CHANGE", COUNTS), tmp_path)
    plain.assert_equal(plain.weights_of(run), plain.train(job, config))


@pytest.mark.parametrize("change", [DRAWS, DRAWS_IN_TRAINING], ids=["always", "in-training"])
def test_random_numbers_that_are_not_known_by_sample_are_trained(launch: Any, change: str) -> None:
    trained(start(launch, change))


def test_a_hidden_ramp_is_refused_before_the_first_step(launch: Any) -> None:
    run = start(launch, RAMP)
    assert "calls do not repeat" in refused(run)["cause"]
    assert not run.of_kind("step")


def test_what_begins_later_ends_the_run(launch: Any) -> None:
    event = refused(start(launch, LATER, num_iterations=100_000))
    assert "calls do not repeat" in event["cause"]
    assert event["cause"].startswith("after step ")


def test_one_dropout_mask_for_the_whole_batch_is_refused_and_trained_with_a_unit(launch: Any) -> None:
    assert "parts do not add up" in refused(start(launch, SHARED))["cause"]
    trained(start(launch, SHARED, unit=BATCH))


def test_a_contrastive_loss_is_refused_and_trained_in_units(launch: Any, tmp_path: Path) -> None:
    event = refused(start(launch, CONTRAST))
    assert "parts do not add up" in event["cause"]
    assert "unit=" in event["hint"]
    run = start(launch, CONTRAST, unit=BATCH // 2)
    trained(run)
    job = plain.job_of(JOB.replace("CHANGE", CONTRAST), tmp_path)
    in_units = {"loss": lambda model, batch: sum(job.loss(model, half) for half in _halves(batch)) / 2}
    config = TrainingConfig(batch_size=BATCH, num_iterations=STEPS, seed=3)
    plain.assert_equal(plain.weights_of(run), plain.train(job, config, **in_units))


def _halves(batch: Any) -> list[Any]:
    return [[tensor[: BATCH // 2] for tensor in batch], [tensor[BATCH // 2 :] for tensor in batch]]
