"""Local SGD: the weights are those of the textbook's algorithm, and every sample is used once, whoever dies."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.strategies.local_sgd import better_rounds, local_batch, round_cut
from remote_agent.training.data import datasets
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.job import create_model, loss_function
from tests.training import plain

ROUNDS, BATCH = 8, 30

JOB = """
import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional as F


class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(20, 16), MIDDLE, nn.Linear(16, 5))

    def loss(self, model, batch):
        time.sleep(PAUSE * len(batch[0]))  # steps that cost nothing are dealt out by noise
        return F.cross_entropy(model(batch[0]), batch[1])

    def create_optimizer(self, model, config):
        return OPTIMIZER

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(100, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.2)"
ADAMW = "torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)"


def job_source(optimizer: str, middle: str = "nn.Tanh()", seconds_a_sample: float = 0.001) -> str:
    source = JOB.replace("OPTIMIZER", optimizer).replace("MIDDLE", middle)
    return source.replace("PAUSE", str(seconds_a_sample))


# --- Decisions -------------------------------------------------------------------------------------------------------


def test_slower_devices_make_fewer_local_steps_in_the_same_time_and_at_least_one() -> None:
    profiles = [DeviceProfile(100.0, 0.01), DeviceProfile(50.0, 0.02), DeviceProfile(1.0)]
    assert round_cut(20, 10, profiles) == (200, 100, 10)
    assert round_cut(1, 10, profiles) == (10, 10, 10)
    assert local_batch(TrainingConfig(batch_size=32), 3) == 10
    assert local_batch(TrainingConfig(batch_size=2), 3) == 1
    assert local_batch(TrainingConfig(batch_size=32, local_batch=4), 3) == 4


def test_rounds_are_cut_again_only_where_it_pays() -> None:
    fast, second = SpeedTrack(DeviceProfile(100.0)), SpeedTrack(DeviceProfile(56.0))
    assert better_rounds(20, 10, (200, 100), (fast, second)) is None
    assert better_rounds(20, 10, (200, 100), (fast, SpeedTrack(DeviceProfile(25.0)))) == (200, 50)
    changed = dataclasses.replace(second, jumped=True)
    assert better_rounds(20, 10, (200, 100), (fast, changed)) == (200, 110), "a known change is worth a little"


# --- Runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.ray
def test_one_local_step_with_plain_averaging_is_synchronous_sgd(launch: Any, tmp_path: Path) -> None:
    source = job_source(SGD)
    run = launch(source, strategy="local_sgd", num_iterations=ROUNDS, batch_size=BATCH, seed=3, local_steps=1)
    assert run.finish() == (0, "")
    assert [step["samples"] for step in run.of_kind("step")] == [BATCH] * ROUNDS
    assert [[worker["samples"] for worker in step["workers"]] for step in run.of_kind("step")] == [[10] * 3] * ROUNDS
    sync = TrainingConfig(num_iterations=ROUNDS, batch_size=BATCH, seed=3)
    plain.assert_equal(plain.weights_of(run), reference(source, tmp_path, sync, [[BATCH]] * ROUNDS, BATCH))


@pytest.mark.ray
def test_rounds_are_those_of_diloco(launch: Any, tmp_path: Path) -> None:
    source = job_source(ADAMW)
    settings = {"strategy": "local_sgd", "batch_size": 20, "local_steps": 5, "outer": "nesterov"}
    run = launch(source, "ab", num_iterations=ROUNDS, seed=3, rebalance=False, stream="network", **settings)
    assert run.finish() == (0, "")
    assert any("2 over network" in each for each in run.of_kind("plan")[0]["reasons"])
    config = TrainingConfig(num_iterations=ROUNDS, seed=3, **settings)
    rounds = [[worker["samples"] for worker in step["workers"]] for step in run.of_kind("step")]
    assert max(rounds[0]) == 5 * 10
    plain.assert_equal(plain.weights_of(run), reference(source, tmp_path, config, rounds, 10))


@pytest.mark.long
@pytest.mark.ray
def test_with_overlap_the_common_weights_come_one_round_late(launch: Any, tmp_path: Path) -> None:
    # A step takes long enough for the weights of the round before to have come while it is made; else they are waited
    # for after it, with the same result. Only where the state is copied, which is due by time, a round is waited for at
    # once, and the events do not say where.
    source = job_source(ADAMW, seconds_a_sample=0.02)
    settings = {"strategy": "local_sgd", "local_batch": 5, "local_steps": 1, "overlap": True, "outer": "nesterov"}
    run = launch(source, num_iterations=ROUNDS, seed=3, rebalance=False, stream="network", **settings)
    assert run.finish() == (0, "")
    assert any("3 over network" in each for each in run.of_kind("plan")[0]["reasons"])
    rounds = [[worker["samples"] for worker in step["workers"]] for step in run.of_kind("step")]
    assert rounds == [[5] * 3] * ROUNDS
    config = TrainingConfig(num_iterations=ROUNDS, seed=3, **settings)
    copied = [set(some) for number in range(ROUNDS) for some in itertools.combinations(range(1, ROUNDS), number)]
    quick = job_source(ADAMW, seconds_a_sample=0.0)
    weights = plain.weights_of(run)
    possible = (reference(quick, tmp_path, config, rounds, 5, waited=some) for some in copied)  # the likely ones first
    assert any(max(plain.errors(weights, one).values()) <= 1e-5 for one in possible)


@pytest.mark.ray
def test_a_model_whose_buffers_change_is_refused_with_the_reason(launch: Any) -> None:
    run = launch(job_source(SGD, middle="nn.BatchNorm1d(16)"), "a", strategy="local_sgd", batch_size=BATCH)
    code, errors = run.finish()
    assert (code, "Traceback" in errors) == (1, False)
    (failed,) = run.of_kind("run_failed")
    assert "running_mean" in failed["cause"]
    assert "strategy=sync" in failed["hint"]


def reference(
    source: str,
    folder: Path,
    config: TrainingConfig,
    rounds: Sequence[Sequence[int]],
    batch: int,
    waited: Collection[int] = (),
) -> dict[str, torch.Tensor]:
    """The textbook's algorithm in this process: `rounds` holds each worker's samples of each round.

    With ``overlap`` the common weights of the rounds in `waited`, and of the last one, are waited for at their end.
    """
    job = plain.job_of(source, folder)
    common = create_model(job, config.seed)
    replicas = [copy.deepcopy(common) for _ in rounds[0]]
    inner = [job.create_optimizer(replica, config) for replica in replicas]
    velocities = [torch.zeros_like(parameter) for parameter in common.parameters()]
    samples, loss = datasets.as_dataset(job.create_data()), loss_function(job)
    order = SampleOrder(config.seed, len(samples), batch)
    taken = 0
    for number, sizes in enumerate(rounds, start=1):
        starts = [copy.deepcopy(replica) for replica in replicas]
        for replica, optimizer, size in zip(replicas, inner, sizes, strict=False):
            for begin in range(taken, taken + size, batch):
                optimizer.zero_grad()
                loss(replica, datasets.fetch(samples, order.take(begin, begin + batch))).backward()
                optimizer.step()
            taken += size
        total = [torch.zeros_like(parameter) for parameter in common.parameters()]
        with torch.no_grad():
            for replica, start, size in zip(replicas, starts, sizes, strict=False):
                for entry, begun, own in zip(total, start.parameters(), replica.parameters(), strict=True):
                    entry.add_(begun - own, alpha=size / sum(sizes))
            if config.overlap:
                # They learn only now what the round before gave; what they have done since, they keep.
                for replica, start in zip(replicas, starts, strict=True):
                    for own, begun, newest in zip(
                        replica.parameters(), start.parameters(), common.parameters(), strict=True
                    ):
                        own.add_(newest - begun)
            for parameter, difference, velocity in zip(common.parameters(), total, velocities, strict=True):
                if config.outer == "none":
                    parameter.sub_(difference)
                else:
                    velocity.mul_(config.outer_momentum).add_(difference)
                    parameter.sub_(config.outer_learning_rate * (difference + config.outer_momentum * velocity))
        if not config.overlap or number in waited or number == len(rounds):
            for replica in replicas:
                replica.load_state_dict(common.state_dict())
    return checkpoint.portable_state(common)
