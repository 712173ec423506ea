"""A model that no server can hold: a worker falls silent in a step, and the weights are those of a plain loop.

Undisturbed runs: ``worker/device/test_device_options_in_runs``, ``test_compatibility``. Faults where gradients are
streamed: ``coordinator/recovery/``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remote_agent.training.config import TrainingConfig
from tests.training import plain

STEPS, BATCH = 24, 30

JOB = """
import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(20, 32), nn.Linear(32, 5)
        self.scale = nn.Parameter(torch.ones(32, dtype=torch.float64))

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.scale.float())


class Job:
    def create_model(self):
        return Model()

    def loss(self, model, batch, step):
        if os.environ.get("TEST_HOST") == "b" and step == 5:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.002 * len(batch[0]))  # samples that cost nothing are dealt out by noise: b might get none
        return F.cross_entropy(model(batch[0]), batch[1])

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(100, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
"""


@pytest.mark.ray
def test_weights_are_the_same_when_a_worker_falls_silent_in_the_middle_of_a_step(launch: Any, tmp_path: Path) -> None:
    settings = {"num_iterations": STEPS, "batch_size": BATCH, "seed": 3, "loss_reduction": "mean"}
    run = launch(JOB, limits=dict.fromkeys("abc", 15), **settings)
    assert run.finish() == (0, "")
    assert any("without a server: parameters are float64" in each for each in run.of_kind("plan")[0]["reasons"])
    (lost,) = run.of_kind("worker_lost")
    assert lost["host"] == "b"
    assert "no answer for" in lost["cause"]
    # The answer that was lost with the process may be that of a slice which was counted already.
    reissued = run.of_kind("slice_reissued")
    assert [event["step"] - lost["step"] for event in reissued] in ([0], [0, 1], [1])
    assert {event["worker"] for event in reissued} == {"b/cpu"}
    assert {event["to"] for event in reissued} <= {"a/cpu", "c/cpu"}
    assert [step["samples"] for step in run.of_kind("step")] == [BATCH] * STEPS
    assert [event["seq"] for event in run.events()] == list(range(1, len(run.events()) + 1))
    plain.assert_equal(plain.weights_of(run), plain.train(plain.job_of(JOB, tmp_path), TrainingConfig(**settings)))
