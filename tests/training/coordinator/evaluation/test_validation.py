"""Validation in runs: whole-set means whatever the workers, a death meanwhile, and training as if there were none."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.training import plain
from tests.training.conftest import Launch, Run
from tests.training.coordinator.recovery.takeover.test_takeover import kill_coordinator, until_it_can_be_taken_over

pytestmark = pytest.mark.ray

JOB = """
import os, time
import torch
from torch import nn

class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def samples(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 6, generator=generator)
        return x, (x[:, :3] + 0.1 * torch.randn(count, 3, generator=generator)).argmax(1)

    def create_data(self):
        return self.samples(256, 1)

    def create_validation_data(self):
        return self.samples(203, 2)
"""

STEPS = {"num_iterations": 12, "batch_size": 32, "measure_seconds": 0.05, "checkpoint_every": 4}
MANY = STEPS | {"num_iterations": 40}
STRATEGIES = [
    {"strategy": "sync"},
    {"strategy": "allreduce"},
    pytest.param({"strategy": "local_sgd", "local_steps": 2}, marks=pytest.mark.long),
]


def figures(weights: dict[str, torch.Tensor], folder: Path) -> tuple[float, float]:
    """val_loss and accuracy of all validation samples, as torch gives them for the whole set at once."""
    job = plain.job_of(JOB, folder)
    model = job.create_model()
    model.load_state_dict(weights)
    model.eval()
    x, y = job.create_validation_data()
    with torch.no_grad():
        scores = model(x)
    return float(functional.cross_entropy(scores, y)), float((scores.argmax(1) == y).double().mean())


def assert_exact(run: Run, event: dict[str, Any], folder: Path) -> None:
    path = run.folder / "checkpoints" / f"step-{event['step']:08d}.safetensors"
    loss, accuracy = figures(plain.checkpoint.load(path), folder)
    assert event["metrics"]["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert event["metrics"]["accuracy"] == pytest.approx(accuracy, abs=1e-9)
    assert event["samples"] == 203


@pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: "-".join(map(str, how.values())))
def test_the_figures_are_those_of_the_whole_set_with_the_steps_weights(
    launch: Launch, tmp_path: Path, how: dict[str, Any]
) -> None:
    run = launch(JOB, "ab", evaluate_every=4, keep_checkpoints=9, **STEPS, **how)
    code, errors = run.finish()
    assert code == 0, errors
    evaluated = run.of_kind("evaluated")
    assert [event["step"] for event in evaluated] == [4, 8, 12]
    for event in evaluated:
        assert_exact(run, event, tmp_path)


def test_training_after_an_evaluation_is_bit_identical_to_training_without_one(launch: Launch) -> None:
    runs = [launch(JOB, "a", **STEPS), launch(JOB, "a", evaluate_every=3, **STEPS)]
    for run in runs:
        code, errors = run.finish()
        assert code == 0, errors
    without, with_it = map(plain.weights_of, runs)
    assert all(torch.equal(without[name], with_it[name]) for name in without)


SLOW = (
    JOB
    + """
    def metrics(self, model, batch):
        x, y = batch
        if not model.training and os.path.exists("FOLDER/slow"):
            with open(f"FOLDER/at-{os.getpid()}", "w"):
                time.sleep(0.3)
        scores = model(x)
        return {"val_loss": nn.functional.cross_entropy(scores, y), "right": ((scores.argmax(1) == y).sum(), len(y))}
"""
)


def test_a_worker_that_dies_while_it_evaluates_costs_no_sample_and_counts_none_twice(
    launch: Launch, tmp_path: Path
) -> None:
    source = SLOW.replace("FOLDER", str(tmp_path))
    run = launch(source, "ab", evaluate_every=4, keep_checkpoints=9, **MANY)
    run.until("step", 1)
    (tmp_path / "slow").touch()
    while not (at := list(tmp_path.glob("at-*"))):
        assert run.process.poll() is None, run.finish()
    victim = int(at[0].name.removeprefix("at-"))
    (tmp_path / "slow").unlink()
    os.kill(victim, signal.SIGKILL)
    code, errors = run.finish()
    assert code == 0, errors
    assert run.of_kind("worker_lost")
    evaluated = run.of_kind("evaluated")
    assert [event["step"] for event in evaluated] == [*range(4, 41, 4)]
    for event in evaluated[-9:]:
        path = run.folder / "checkpoints" / f"step-{event['step']:08d}.safetensors"
        loss, accuracy = figures(plain.checkpoint.load(path), tmp_path)
        assert event["metrics"]["val_loss"] == pytest.approx(loss, rel=1e-5)
        assert event["metrics"]["right"] == pytest.approx(accuracy, abs=1e-9)


@pytest.mark.long
def test_an_evaluation_that_a_coordinator_was_killed_in_is_made_by_its_successor(
    launch: Launch, tmp_path: Path
) -> None:
    run = launch(SLOW.replace("FOLDER", str(tmp_path)), "ab", evaluate_every=4, keep_checkpoints=9, **MANY)
    until_it_can_be_taken_over(run, 2)
    (tmp_path / "slow").touch()
    while not list(tmp_path.glob("at-*")):
        assert run.process.poll() is None, run.finish()
    kill_coordinator(run)
    (tmp_path / "slow").unlink()
    code, errors = run.finish()
    assert code == 0, errors
    assert [event["checkpoint"] for event in run.of_kind("run_resumed")] == [""]
    evaluated = run.of_kind("evaluated")
    assert [event["step"] for event in evaluated] == [*range(4, 41, 4)]
    path = run.folder / "checkpoints" / "step-00000040.safetensors"
    loss, accuracy = figures(plain.checkpoint.load(path), tmp_path)
    assert evaluated[-1]["metrics"]["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert evaluated[-1]["metrics"]["right"] == pytest.approx(accuracy, abs=1e-9)
