"""A job with ``phases()``: a GAN's networks take turns, as in a plain loop, through a lost worker and a resume."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.job import loss_function
from tests.training import plain

pytestmark = pytest.mark.ray

BATCH, SAMPLES, STEPS = 24, 60, 10

JOB = """
import os
import signal

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6))
        self.critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(), nn.Linear(16, 1))


class Job:
    def create_model(self):
        return Gan()

    def create_data(self):
        rows = torch.randn(60, 10, generator=torch.Generator().manual_seed(5))
        return DataLoader(TensorDataset(rows[:, :4], rows[:, 4:]), batch_size=24)

    def critic_loss(self, model, batch, step):
        if DIES and step == 3 and os.environ.get("TEST_HOST") == "b" and not os.listdir(FOLDER):
            open(os.path.join(FOLDER, "died"), "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        noise, real = batch
        fake = model.generator(noise).detach()
        return F.softplus(-model.critic(real)).mean() + F.softplus(model.critic(fake)).mean()

    def generator_loss(self, model, batch):
        return F.softplus(-model.critic(model.generator(batch[0]))).mean()

    def phases(self, model, config):
        return [
            (self.critic_loss, torch.optim.SGD(model.critic.parameters(), lr=0.05, momentum=0.9)),
            (self.generator_loss, torch.optim.Adam(model.generator.parameters(), lr=0.01)),
        ]
"""


def source(folder: Path, *, dies: bool = False) -> str:
    return JOB.replace("DIES", str(dies)).replace("FOLDER", repr(str(folder)))


def by_turns(job: Any, steps: int) -> dict[str, Tensor]:
    """The usual loop: for each batch a step of the critic, then one of the generator."""
    torch.manual_seed(3)
    model = job.create_model()
    phases = job.phases(model, None)
    batches = [batch for _ in range(steps) for batch in job.create_data()]
    for step in range(steps):
        loss, optimizer = phases[step % 2]
        model.zero_grad()
        loss_function(SimpleNamespace(loss=loss))(model, batches[step // 2]).backward()
        optimizer.step()
    return checkpoint.portable_state(model)


def test_two_networks_take_turns_as_in_a_plain_loop(launch: Any, tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.mkdir()
    settings = {"seed": 3, "stream": "network", "rebalance": False}
    run = launch(source(fault, dies=True), "ab", num_iterations=STEPS // 2, **settings)
    assert run.finish() == (0, ""), run.events()[-1]
    assert [lost["worker"] for lost in run.of_kind("worker_lost")] == ["b/cpu"]
    job = plain.job_of(source(fault), tmp_path)
    plain.assert_equal(plain.weights_of(run), by_turns(job, STEPS // 2))
    resumed = launch(source(fault), "abc", resume=run, num_iterations=STEPS, **settings)  # it is the generator's turn
    assert resumed.finish() == (0, ""), resumed.events()[-1]
    plain.assert_equal(plain.weights_of(resumed), by_turns(job, STEPS))
    assert [step["samples"] for step in resumed.of_kind("step")][-5:] == [12, 24, 24, 24, 24]


def test_what_is_no_phase_is_refused_with_an_example(launch: Any, tmp_path: Path) -> None:
    broken = source(tmp_path).replace("(self.generator_loss, torch", "(torch")
    run = launch(broken, "ab", num_iterations=2)
    code, _ = run.finish()
    assert code == 1
    event = run.events()[-1]
    assert "phases() gave no list of (loss, optimizer)" in event["cause"]
    assert "generator_loss" in event["hint"]
