"""Schedules, clipping, precision, recomputation and full memory in real runs, beside a plain loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from remote_agent.training.config import TrainingConfig
from tests.training import plain

STEPS, BATCH, SEED, CLIP = 10, 30, 3, 0.36

JOB = """
import os

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.back = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.back(torch.tanh(self.wide(self.norm(x))))


class Model(nn.Module):
    '''Tied, frozen and unused parameters.'''

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.tied, self.again = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.again.weight = self.tied.weight
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(7, 7)
        self.head = nn.Linear(16, 5)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.frozen(torch.tanh(self.again(torch.tanh(self.tied(x)))))
        return self.head(x) * self.scale


class Job:
    def create_model(self):
        return Model()

    def create_optimizer(self, model, config):
        few = [model.head.weight]
        return torch.optim.AdamW([
            {"params": [each for each in model.parameters() if each is not few[0]], "lr": 0.003},
            {"params": few, "lr": 0.01, "weight_decay": 0.1},
        ])

    def create_scheduler(self, optimizer, config):
        # Changes the betas as well.
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.01, 0.03], total_steps=config.num_iterations)

    def loss(self, model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        if os.environ.get("TEST_HOST") == "b" and len(batch[0]) > FITS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return loss

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(100, 16, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
"""


def source(fits: int = 100) -> str:
    return JOB.replace("FITS", str(fits))


def plain_loop(folder: Path, text: str) -> dict[str, Tensor]:
    """The textbook's loop, in which some steps are clipped and some are not."""
    norms: list[float] = []
    config = TrainingConfig(batch_size=BATCH, num_iterations=STEPS, seed=SEED, clip_norm=CLIP)
    weights = plain.train(plain.job_of(text, folder), config, norms=norms)
    assert min(norms) < CLIP < max(norms), norms
    return weights


def errors(run: Any, expected: dict[str, Tensor]) -> Iterator[tuple[str, float]]:
    trained = plain.weights_of(run)
    assert trained.keys() == expected.keys()
    for name, value in expected.items():
        yield name, ((trained[name] - value).norm() / value.norm().clamp_min(1e-12)).item()


SETTINGS = {"num_iterations": STEPS, "batch_size": BATCH, "seed": SEED, "clip_norm": CLIP}


@pytest.mark.ray
def test_weights_with_clipping_and_a_scheduler_of_the_jobs_own_are_those_of_a_plain_loop(
    launch: Any, tmp_path: Path
) -> None:
    limits = {"a": 17, "b": 9, "c": 4}
    run = launch(source(), limits=limits, **SETTINGS, stream="network", shards=2)
    assert run.finish() == (0, "")
    assert any("over network" in each for each in run.of_kind("plan")[0]["reasons"]), run.of_kind("plan")
    for step in run.of_kind("step"):  # they cross the data's epochs
        assert [worker["samples"] for worker in step["workers"]] == list(limits.values())
    plain.assert_equal(plain.weights_of(run), plain_loop(tmp_path, source()))


@pytest.mark.ray
def test_memory_that_is_full_on_one_device_is_told_and_the_weights_are_the_same(launch: Any, tmp_path: Path) -> None:
    # The measurement sees slices of 15 at most, so that a share of 20 is what does not fit.
    run = launch(source(fits=16), "ab", limits={"a": 10, "b": 20}, **SETTINGS, activation_checkpointing=True)
    assert run.finish() == (0, "")
    told = [event["reason"] for event in run.of_kind("rebalanced")]
    assert "b/cpu's memory was full: it computes 10 samples at a time from now on" in told
    assert not run.of_kind("worker_lost")
    (plan,) = run.of_kind("plan")
    assert "a/cpu, b/cpu: activation checkpointing of 2 blocks" in plan["reasons"]
    plain.assert_equal(plain.weights_of(run), plain_loop(tmp_path, source()))


@pytest.mark.ray
def test_lower_precision_and_small_parts_train_as_well_and_the_plan_says_so(launch: Any, tmp_path: Path) -> None:
    run = launch(source(), **SETTINGS, precision="fp16", micro_batch=4)
    assert run.finish() == (0, "")
    (plan,) = run.of_kind("plan")
    assert "a/cpu, b/cpu, c/cpu: autocast to bf16: a CPU has no fast fp16" in plan["reasons"]
    found = dict(errors(run, plain_loop(tmp_path, source())))
    assert all(error < 0.1 for error in found.values()), found
    assert max(found.values()) > 1e-5, "it was really computed in fewer bits"


@pytest.mark.ray
def test_rounds_of_local_sgd_follow_the_schedule_and_clip_each_step(launch: Any, tmp_path: Path) -> None:
    """One worker with one local step a round, and nothing done to their mean, is a plain loop."""
    run = launch(source(), "a", **SETTINGS, strategy="local_sgd", local_steps=1, local_batch=BATCH)
    assert run.finish() == (0, "")
    plain.assert_equal(plain.weights_of(run), plain_loop(tmp_path, source()))
