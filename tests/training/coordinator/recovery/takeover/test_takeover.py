"""A coordinator that is killed has a successor that takes its workers and servers over: nothing is made again."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.recovery.takeover import takeover_file
from remote_agent.training.data import record
from tests.training import plain
from tests.training.conftest import RUN_S, Run
from tests.training.loopback import Cluster

pytestmark = pytest.mark.ray

JOB = """
import time

import torch
from torch import nn


class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

    def create_scheduler(self, optimizer, config):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=config.num_iterations)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(50, 6, generator=generator)
        return x, x[:, :3].argmax(1)

    def loss(self, model, batch):
        time.sleep(0.004 * len(batch[0]))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
EVALUATION = """
    def evaluate(self, model):
        time.sleep(2)
        return {"weights": model[0].weight.sum()}
"""
STEPS, BATCH = 60, 12
SETTINGS = {"batch_size": BATCH, "num_iterations": STEPS, "measure_seconds": 0.1, "stream": "network"}


def kill_coordinator(run: Run) -> None:
    """SIGKILL for the one that coordinates; its overseer lives."""
    (coordinator,) = psutil.Process(run.process.pid).children()
    coordinator.kill()


def workers_on(host: str, cluster: Cluster) -> list[psutil.Process]:
    """The workers' processes on a host: they write into the logs of its node."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        if "".join((one.info["cmdline"] or [""])[:1]).startswith("ray::Worker"):
            with contextlib.suppress(OSError):  # it has just ended
                if Path(f"/proc/{one.pid}/fd/1").readlink().is_relative_to(cluster.folder / host):
                    found.append(one)
    return found


def kill_together(run: Run, hosts: str, cluster: Cluster) -> None:
    """SIGKILL for the one that coordinates and for the workers on these hosts, in the same moment."""
    workers = [worker for host in hosts for worker in workers_on(host, cluster)]
    assert len(workers) == len(hosts)
    kill_coordinator(run)
    for worker in workers:
        worker.kill()


def until_it_can_be_taken_over(run: Run, step: int) -> None:
    end = time.monotonic() + RUN_S
    while (
        not (run.folder / takeover_file.FILE).exists()
        or not run.of_kind("step")
        or run.events()[-1].get("step", 0) < step
    ):
        assert run.process.poll() is None, run.finish()
        assert time.monotonic() < end
        time.sleep(0.01)


def assert_whole(run: Run, samples: int) -> None:
    """The events have no gap, each step came once, and so did each sample."""
    events = run.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    steps = [event["step"] for event in run.of_kind("step")]
    assert steps == list(range(1, len(steps) + 1))
    spans = [span for slices in record.read(run.folder / record.FILE).values() for span in slices]
    assert record.gaps_and_overlaps(spans, samples) == ()


def assert_exact(run: Run, steps: int = STEPS) -> None:
    """The weights are those of a plain loop."""
    job = plain.job_of(JOB, run.folder)
    expected = plain.train(job, TrainingConfig(batch_size=BATCH, num_iterations=steps))
    weights = plain.weights_of(run)
    assert max(float((weights[name] - value).norm() / value.norm()) for name, value in expected.items()) < 1e-5


def test_a_run_goes_on_with_the_same_workers_whenever_its_coordinator_is_killed(launch: Any) -> None:
    run = launch(JOB, "abc", **SETTINGS)
    for step in (3, 20, 35):
        until_it_can_be_taken_over(run, step)
        kill_coordinator(run)
        run.until("run_resumed", len(run.of_kind("run_resumed")) + 1)
    code, errors = run.finish()
    assert code == 0, errors
    assert "Traceback" not in errors
    assert [event["checkpoint"] for event in run.of_kind("run_resumed")] == ["", "", ""]
    assert [event["kind"] for event in run.events() if event["kind"] in ("coordinator_lost", "run_resumed")] == [
        "coordinator_lost",
        "run_resumed",
    ] * 3
    assert len(run.of_kind("worker_joined")) == 3, "nobody was started again"
    assert_whole(run, STEPS * BATCH)
    assert not (run.folder / takeover_file.FILE).exists()
    assert_exact(run)


def test_a_run_that_has_neither_workers_nor_a_checkpoint_to_go_on_with_starts_over(
    launch: Any, cluster: Cluster
) -> None:
    steps = 20
    run = launch(JOB, "ab", **SETTINGS | {"num_iterations": steps}, checkpoint_seconds=0)
    until_it_can_be_taken_over(run, 3)
    kill_together(run, "ab", cluster)
    code, errors = run.finish()
    assert code == 0, errors
    assert "Traceback" not in errors
    (resumed,) = run.of_kind("run_resumed")
    assert (resumed["step"], resumed["checkpoint"], resumed["went_back"]) == (0, "", True)
    assert_exact(run, steps)


@pytest.mark.long
def test_a_run_ends_as_it_would_have_when_its_coordinator_is_killed_after_the_last_step(launch: Any) -> None:
    """Once before the last checkpoint is there, and once when there is nothing left but the evaluation."""
    run = launch(JOB + EVALUATION, "ab", **SETTINGS)
    until_it_can_be_taken_over(run, STEPS - 1)
    run.until("step", STEPS)
    kill_coordinator(run)
    run.until("run_resumed")
    run.until("checkpoint_saved")
    kill_coordinator(run)
    code, errors = run.finish()
    assert code == 0, errors
    (finished,) = run.of_kind("run_finished")
    assert finished["steps"] == STEPS
    assert finished["evaluation"].keys() == {"weights"}
    assert_whole(run, STEPS * BATCH)
    assert_exact(run)
