"""A run of the coordinator ends with the weights of a plain loop on the same batches, which cross the data's epochs.

More models, optimizers and numbers of workers, in steps of the full batch: ``test_parity_matrix``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.job import create_model, loss_function
from remote_agent.training.saving import checkpoint

STEPS, BATCH = 12, 30

JOB = """
import os
import signal

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    '''Tied, frozen and unused parameters, and perhaps two dtypes.'''

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 32)
        self.tied = nn.Linear(32, 32, bias=False)
        self.again = nn.Linear(32, 32, bias=False)
        self.again.weight = self.tied.weight
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(7, 7)
        self.scale = nn.Parameter(torch.ones(32, dtype=DTYPE))
        self.last = nn.Linear(32, 5)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.again(torch.tanh(self.tied(x))))
        x = self.frozen(x) * self.scale.float()
        return self.last(x)


class Job:
    calls = 0

    def create_model(self):
        return Model()

    def loss(self, model, batch):
        # The measurement calls this 8 times at most, so that this is in the middle of a step.
        Job.calls += 1
        if os.environ.get("TEST_HOST") == "b" and Job.calls == FAIL_AT:
            os.kill(os.getpid(), FAIL_WITH)
        return F.cross_entropy(model(batch[0]), batch[1])

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


WAYS = {
    "objects": ("torch.float64", "auto", "as Ray objects: parameters are float64"),
    "network": ("torch.float32", "network", "over network"),
    "memory": ("torch.float32", "auto", "over shared memory"),
}


@pytest.mark.ray
@pytest.mark.parametrize(("way", "optimizer"), [("objects", "momentum"), ("network", "adamw"), ("memory", "adamw")])
def test_weights_equal_those_of_a_plain_loop(launch: Any, tmp_path: Path, way: str, optimizer: str) -> None:
    dtype, stream, reason = WAYS[way]
    source = job_source(optimizer, dtype)
    limits = {"a": 17, "b": 9, "c": 4}
    run = launch(source, num_iterations=STEPS, batch_size=BATCH, seed=3, limits=limits, stream=stream)
    assert run.finish() == (0, "")
    assert any(reason in each for each in run.of_kind("plan")[0]["reasons"]), run.of_kind("plan")
    sizes = [worker["samples"] for worker in run.of_kind("step")[-1]["workers"]]
    assert sizes == list(limits.values())
    assert [step["samples"] for step in run.of_kind("step")] == [BATCH] * STEPS
    assert_as_plain_loop(run, source, tmp_path)


@pytest.mark.ray
@pytest.mark.parametrize("way", ["objects", "network"])
def test_weights_are_the_same_when_a_worker_is_killed_in_the_middle_of_a_step(
    launch: Any, tmp_path: Path, way: str
) -> None:
    dtype, stream, _ = WAYS[way]
    source = job_source("adamw", dtype, fail_at=12, signal="signal.SIGKILL")
    limits = {"a": 12, "b": 12, "c": 12}
    run = launch(source, num_iterations=STEPS, batch_size=BATCH, seed=3, limits=limits, stream=stream)
    assert run.finish() == (0, "")
    (lost,) = run.of_kind("worker_lost")
    assert lost["host"] == "b"
    reissued = run.of_kind("slice_reissued")
    # Streamed, the slice of the step that was submitted ahead is issued again as well; and the answer that was lost
    # with the process may be that of a slice which was counted already, so that only the one ahead is.
    assert [event["step"] - lost["step"] for event in reissued] in ([0], [0, 1], [1])
    assert {event["worker"] for event in reissued} == {"b/cpu"}
    assert {event["to"] for event in reissued} <= {"a/cpu", "c/cpu"}
    assert [event["seq"] for event in run.events()] == list(range(1, len(run.events()) + 1))
    assert_as_plain_loop(run, source, tmp_path)


@pytest.mark.ray
@pytest.mark.parametrize("way", ["objects", "memory"])
def test_weights_are_the_same_when_a_worker_stops_answering(launch: Any, tmp_path: Path, way: str) -> None:
    dtype, stream, _ = WAYS[way]
    source = job_source("momentum", dtype, fail_at=12, signal="signal.SIGSTOP")
    run = launch(source, num_iterations=STEPS, batch_size=BATCH, seed=3, slice_deadline_s=6, stream=stream)
    code, errors = run.finish()
    assert (code, errors) == (0, ""), errors
    (lost,) = run.of_kind("worker_lost")
    assert lost["host"] == "b"
    assert "no answer" in lost["cause"]
    # Streamed, its slice of that step may have been counted before it stopped.
    assert run.of_kind("slice_reissued")[0]["step"] - lost["step"] in (0, 1)
    assert_as_plain_loop(run, source, tmp_path)


def job_source(optimizer: str, dtype: str, fail_at: int = 0, signal: str = "0") -> str:
    source = JOB.replace("OPTIMIZER", OPTIMIZERS[optimizer]).replace("DTYPE", dtype)
    return source.replace("FAIL_AT", str(fail_at)).replace("FAIL_WITH", signal)


def assert_as_plain_loop(run: Any, source: str, folder: Path) -> None:
    assert [step["samples"] for step in run.of_kind("step")] == [BATCH] * STEPS
    expected = plain_loop(source, folder, TrainingConfig(batch_size=BATCH, num_iterations=STEPS, seed=3))
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
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    job = module.Job()
    model = create_model(job, config.seed)
    optimizer = job.create_optimizer(model, config)
    samples = datasets.as_dataset(job.create_data())
    order = SampleOrder(config.seed, len(samples), config.batch_size)
    loss = loss_function(job)
    for step in range(1, config.num_iterations + 1):
        optimizer.zero_grad()
        loss(model, datasets.fetch(samples, order.step(step))).backward()
        optimizer.step()
    return checkpoint.portable_state(model)
