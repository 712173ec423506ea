"""Whatever the number of workers and the cut, the weights are those of a plain training loop on the same batches."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_agent.training import checkpoint, data
from remote_agent.training.config import TrainingConfig
from remote_agent.training.job import create_model, loss_function
from remote_agent.training.order import SampleOrder

STEPS, BATCH = 12, 30

JOB = """
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    '''Tied, frozen and unused parameters, and two dtypes.'''

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 32)
        self.tied = nn.Linear(32, 32, bias=False)
        self.again = nn.Linear(32, 32, bias=False)
        self.again.weight = self.tied.weight
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(7, 7)
        self.scale = nn.Parameter(torch.ones(32, dtype=torch.float64))
        self.last = nn.Linear(32, 5)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.again(torch.tanh(self.tied(x))))
        x = self.frozen(x) * self.scale.float()
        return self.last(x)


class Job:
    def create_model(self):
        return Model()

    def create_optimizer(self, model, config):
        return OPTIMIZER

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(100, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
"""
OPTIMIZERS = {
    "momentum": "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)",
    "adamw": "torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)",
}


@pytest.mark.ray
@pytest.mark.parametrize("hosts", ["a", "abc"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_weights_equal_those_of_a_plain_loop(launch: Any, tmp_path: Path, optimizer: str, hosts: str) -> None:
    source = JOB.replace("OPTIMIZER", OPTIMIZERS[optimizer])
    # Slices of unequal size whatever the measurement says: the first host may hold 17 samples, the others get the rest.
    run = launch(source, hosts, num_iterations=STEPS, batch_size=BATCH, seed=3)
    assert run.finish() == (0, "")
    assert [step["samples"] for step in run.of_kind("step")] == [BATCH] * STEPS
    expected = plain_loop(source, tmp_path, TrainingConfig(batch_size=BATCH, num_iterations=STEPS, seed=3))
    trained = checkpoint.load(Path(run.of_kind("run_finished")[0]["checkpoint"]))
    assert trained.keys() == expected.keys()
    for name, value in expected.items():
        error = (trained[name] - value).norm() / value.norm().clamp_min(1e-12)
        assert error <= 1e-5, f"{name}: {error:.2e}"


def plain_loop(source: str, folder: Path, config: TrainingConfig) -> dict[str, torch.Tensor]:
    """The textbook loop, in this process."""
    path = folder / "plain_job.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("plain_job", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    job = module.Job()
    model = create_model(job, config.seed)
    optimizer = job.create_optimizer(model, config)
    samples = data.as_dataset(job.create_data())
    order = SampleOrder(config.seed, len(samples), config.batch_size)
    loss = loss_function(job)
    for step in range(1, config.num_iterations + 1):
        optimizer.zero_grad()
        loss(model, data.fetch(samples, order.step(step))).backward()
        optimizer.step()
    return checkpoint.portable_state(model)
