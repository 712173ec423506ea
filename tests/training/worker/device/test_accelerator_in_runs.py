"""Runs on a device whose tensors are apart from the CPU's, beside one on the CPU: what a GPU in a fleet meets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compatible.accelerator import KIND
from remote_agent.training.config import TrainingConfig
from remote_agent.training.shared.own_devices import KINDS
from tests.training import plain

JOB = """
import torch
from torch import nn

from benchmarks.compatible import accelerator

accelerator.register(one_thread={one_thread})


class Job:
    def __init__(self):
        self.measure = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.teacher = nn.Linear(20, 5, bias=False).requires_grad_(False)
        nn.init.eye_(self.teacher.weight)

    def loss(self, model, batch):
        out = model(batch[0])
        return self.measure(out, batch[1]) + (out - self.teacher(batch[0])).square().mean()

    def create_model(self):
        return nn.Sequential(nn.Linear(20, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 5))

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(100, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
"""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    KINDS.pop(KIND, None)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize(
    ("strategy", "one_thread"),
    [("sync", False), ("sync", True), ("allreduce", False)],
)
def test_weights_are_those_of_a_plain_loop(launch: Any, tmp_path: Path, strategy: str, one_thread: bool) -> None:
    job = JOB.format(one_thread=one_thread)
    settings = {"num_iterations": 6, "batch_size": 30, "seed": 3, "strategy": strategy, "clip_norm": 0.5}
    run = launch(job, "ab", device=KIND, **settings)
    assert run.finish() == (0, "")
    assert {joined["device"] for joined in run.of_kind("worker_joined")} == {f"{KIND}:0"}
    plain.assert_equal(plain.weights_of(run), plain.train(plain.job_of(job, tmp_path), TrainingConfig(**settings)))
