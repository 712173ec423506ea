"""A run that goes on from a checkpoint is the run that it would have been, and counts every sample as often."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import record
from remote_agent.training.data.order import SampleOrder
from tests.training import plain
from tests.training.conftest import RUN_S

pytestmark = pytest.mark.ray

JOB = """
import os
import signal
import time

import torch
from torch import nn


class Job:
    weights_seen = set()

    def create_model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def create_optimizer(self, model, config):
        return OPTIMIZER

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 11, 17], 0.5)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(50, 6, generator=generator)
        return x, x[:, :3].argmax(1)

    def loss(self, model, batch):
        Job.weights_seen.add(float(model[0].bias.detach()[0]))
        if len(Job.weights_seen) == MEASURED_WITH + 7 and os.environ.get("TEST_HOST") in DYING:
            os.kill(os.getpid(), signal.SIGKILL)
        while len(Job.weights_seen) > HELD_AFTER and not os.path.exists(RELEASED):
            time.sleep(0.01)  # the coordinator is killed meanwhile
        time.sleep(0.002 * len(batch[0]))  # samples that cost nothing are dealt out by noise: some workers get none
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
OPTIMIZERS = {
    "momentum": "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)",
    "adamw": "torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)",
}
SIZE, BATCH = 50, 12

MEASURED_WITH = 1
"""Other weights than those of steps that the loss sees: the audit's."""


def job(folder: Path, optimizer: str = "adamw", dying: str = "", held_after: int = 1000) -> str:
    """Its workers wait in the step after ``held_after`` others of theirs, until the coordinator was killed."""
    source = (
        JOB.replace("MEASURED_WITH", str(MEASURED_WITH))
        .replace("OPTIMIZER", OPTIMIZERS[optimizer])
        .replace("DYING", repr(tuple(dying)))
    )
    return source.replace("HELD_AFTER", str(MEASURED_WITH + held_after)).replace(
        "RELEASED", repr(str(folder / "released"))
    )


def until_saved(run: Any, count: int) -> None:
    """Wait for so many checkpoints. Their events come after a later step, and perhaps the workers wait in that one."""
    end = time.monotonic() + RUN_S
    while len(list((run.folder / checkpoint.FOLDER).glob("step-*.json"))) < count:
        assert run.process.poll() is None, run.finish()
        assert time.monotonic() < end, run.events()[-3:]
        time.sleep(0.02)


def kill(run: Any, folder: Path) -> None:
    """SIGKILL for the coordinator: no last event, no last checkpoint. The next run's workers do not wait."""
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.communicate()
    (folder / "released").touch()


def trained(run: Any) -> dict[str, torch.Tensor]:
    """The weights of a run that ends well."""
    code, errors = run.finish()
    assert code == 0, errors
    return plain.weights_of(run)


def plain_loop(folder: Path, steps: int) -> dict[str, torch.Tensor]:
    """The same job in one process, without an interruption, and without what its loss does beside."""
    job = plain.job_of((folder / "job.py").read_text(), folder)
    config = TrainingConfig(batch_size=BATCH, num_iterations=steps)
    return plain.train(job, config, loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))


def worst_error(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    return max(float((weights[name] - value).norm() / value.norm()) for name, value in expected.items())


def way(name: str) -> dict[str, str]:
    """Settings: a value of ``stream``, or a strategy without streams."""
    return {"strategy": name} if name == "allreduce" else {"stream": name}


@pytest.mark.parametrize(
    ("optimizer", "before", "hosts", "after", "other_hosts"),
    [
        pytest.param("momentum", "auto", "ab", "allreduce", "bc", marks=pytest.mark.long),
        ("adamw", "allreduce", "ab", "network", "abc"),
    ],
)
def test_a_killed_run_goes_on_to_the_weights_of_one_that_was_never_interrupted(
    launch: Any, tmp_path: Path, optimizer: str, before: str, hosts: str, after: str, other_hosts: str
) -> None:
    settings = {"batch_size": BATCH, "num_iterations": 30, "checkpoint_every": 3, "measure_seconds": 0.1}
    source = job(tmp_path, optimizer, held_after=11)
    first = launch(source, hosts, **way(before), **settings)
    until_saved(first, 2)
    kill(first, tmp_path)
    resumed = launch(source, other_hosts, **way(after), resume=first, **settings)
    weights = trained(resumed)
    events = resumed.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    (went_on,) = resumed.of_kind("run_resumed")
    assert went_on["step"] in range(6, 30, 3)
    assert went_on["samples"] == went_on["step"] * BATCH
    assert went_on["notes"] == []
    assert worst_error(weights, plain_loop(first.folder, 30)) < 1e-5


def test_every_sample_is_counted_once_an_epoch_whoever_dies_and_when(launch: Any, tmp_path: Path) -> None:
    settings = {"batch_size": BATCH, "epochs": 3, "checkpoint_every": 3, "measure_seconds": 0.1, "stream": "network"}
    first = launch(job(tmp_path, dying="b", held_after=10), "abc", **settings)
    first.until("worker_lost")
    until_saved(first, 2)
    kill(first, tmp_path)
    # With another setting nothing is taken over: the new workers have another job.
    resumed = launch(job(tmp_path, dying="c"), "abc", resume=first, **settings, keep_checkpoints=4)
    trained(resumed)
    assert [event["host"] for event in resumed.of_kind("worker_lost")] == ["b", "c"]
    path = resumed.folder / record.FILE
    assert any("resumed_after" in json.loads(line) for line in path.read_text().splitlines())
    assert np.array_equal(plain.times_counted(path, SampleOrder(0, SIZE, BATCH)), np.full(SIZE, 3))
    slices = [span for spans in record.read(path).values() for span in spans]
    assert record.gaps_and_overlaps(slices, 3 * SIZE) == ()
    (finished,) = resumed.of_kind("run_finished")
    assert (finished["samples"], finished["steps"]) == (150, 13)
    assert resumed.of_kind("step")[-1]["samples"] == 6


@pytest.mark.parametrize("freezes", [True, False])
def test_a_layer_may_be_frozen_or_trained_from_one_run_to_the_next(launch: Any, tmp_path: Path, freezes: bool) -> None:
    usual = job(tmp_path)
    frozen = usual.replace("nn.Linear(6, 16)", "nn.Linear(6, 16).requires_grad_(False)")
    settings = {"batch_size": BATCH, "measure_seconds": 0.1, "stream": "network"}
    sources = (usual, frozen) if freezes else (frozen, usual)
    first = launch(sources[0], "ab", **settings, num_iterations=4)
    before = trained(first)
    resumed = launch(sources[1], "ab", resume=first, **settings, num_iterations=8)
    after = trained(resumed)
    (went_on,) = resumed.of_kind("run_resumed")
    assert "the optimizer starts afresh: other parameters were trained before (requires_grad)" in went_on["notes"]
    assert torch.equal(before["0.weight"], after["0.weight"]) is freezes
    assert not torch.equal(before["2.weight"], after["2.weight"])


@pytest.mark.long
def test_rounds_of_local_steps_end_with_the_last_sample_of_the_last_epoch_and_resume(
    launch: Any, tmp_path: Path
) -> None:
    settings = {
        "batch_size": 6,
        "epochs": 4,
        "checkpoint_every": 2,
        "measure_seconds": 0.1,
        "strategy": "local_sgd",
        "local_steps": 3,
        "outer": "nesterov",
    }
    source = job(tmp_path, "momentum", held_after=15)
    first = launch(source, "abc", **settings)
    until_saved(first, 2)
    kill(first, tmp_path)
    state = checkpoint.find(first.folder).training_state()
    assert len(state.inner) == 3
    assert set(state.optimizer["0.weight"]) == {"momentum_buffer"}
    resumed = launch(source, "ab", resume=first, **settings)
    trained(resumed)
    assert "2 workers" in resumed.of_kind("run_resumed")[0]["notes"][0]
    path = resumed.folder / record.FILE
    assert np.array_equal(plain.times_counted(path, SampleOrder(0, SIZE, 6)), np.full(SIZE, 4))


def test_nothing_is_left_to_do_for_a_checkpoint_that_holds_all_steps(launch: Any, tmp_path: Path) -> None:
    settings = {"batch_size": BATCH, "num_iterations": 2, "measure_seconds": 0.1}
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    about: dict[str, Any] = {"position": 2 * BATCH, "seed": 0, "dataset_size": SIZE}
    about["config"] = dataclasses.asdict(TrainingConfig(**settings))
    (tmp_path / "first").mkdir()
    checkpoint.save(tmp_path / "first" / checkpoint.FOLDER, 2, model, about)
    again = launch(job(tmp_path), "a", resume=SimpleNamespace(folder=tmp_path / "first"), **settings)
    code, errors = again.finish()
    assert code == 1
    assert "Traceback" not in errors
    (failed,) = again.of_kind("run_failed")
    assert "step 2" in failed["cause"]
    assert "num_iterations" in failed["hint"]
    events = again.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
