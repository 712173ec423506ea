"""Workers fail in every way that they can, on a real cluster: training goes on soon, and the weights do not show it."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.protocol import CONTROL_FILE, DeviceSpec, RunCommand, encode
from remote_agent.states import ControlCommand
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import record
from tests.training import plain

pytestmark = pytest.mark.ray

PROCESS_S, SILENCE_S, BACK_S = 1.0, 3.0, 15.0
"""Budgets: how much longer than usual a step may take when a process is killed and when a host falls silent, and until
a worker that can come back is back."""

NOISE_S = 0.3
"""What a step may take longer without any fault, beyond the longest one before it: tests share a busy computer."""

AFTER_S = 6.0
"""After a fault's beginning, a longer step is put down to it."""

JOB = """
import os
import pathlib
import time

import torch
from torch import nn
from torch.nn import functional as F


class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5))

    def loss(self, model, batch, step):
        if step > 1:
            name = pathlib.Path(FOLDER) / f"{os.getpid()}.pid"
            name.write_text(str(os.getpid()))
            name.replace(pathlib.Path(FOLDER) / os.environ["TEST_HOST"])
            BODY
        time.sleep(0.008 * len(batch[0]))
        return F.cross_entropy(model(batch[0]), batch[1])

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(120, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
"""

SETTINGS: dict[str, dict[str, Any]] = {
    "sync": {"strategy": "sync", "batch_size": 30, "stream": "network"},
    "allreduce": {"strategy": "allreduce", "batch_size": 30},
}


def job(folder: Path, body: str = "pass") -> str:
    return JOB.replace("FOLDER", repr(str(folder))).replace("BODY", body)


def process(folder: Path, host: str) -> int:
    """The newest worker's on a host."""
    return int((folder / host).read_text())


def tell(run: Any, command: RunCommand) -> None:
    with (run.folder / CONTROL_FILE).open("a") as file:
        file.write(encode(command) + "\n")


def stall(run: Any, fault: float) -> tuple[float, float]:
    """By how much the longest step after a fault took longer than the median one, and the longest one before it."""
    times = [event["time"] for event in run.of_kind("step")][3:]
    gaps = list(itertools.pairwise(times))
    usual = statistics.median(after - before for before, after in gaps)
    hit = [after - before for before, after in gaps if after > fault and before < fault + AFTER_S]
    free = [after - before for before, after in gaps if after <= fault]
    return max(hit) - usual, max(free) - usual


def opening(run: Any) -> float:
    """How long the run's workers took to start at its beginning, on this computer as busy as it is now."""
    first: float = run.of_kind("worker_joined")[0]["time"] - run.of_kind("run_started")[0]["time"]
    return first


def seen(run: Any, kind: str, worker: str = "b/cpu") -> list[dict[str, Any]]:
    return [event for event in run.of_kind(kind) if event["worker"] == worker]


def until(run: Any, kind: str, count: int, worker: str = "b/cpu") -> None:
    deadline = time.monotonic() + 110
    while len(seen(run, kind, worker)) < count:
        assert run.process.poll() is None, run.finish()
        assert time.monotonic() < deadline, run.events()[-3:]
        time.sleep(0.02)


def samples_of(run: Any, worker: str, after: float) -> int:
    """That a worker has done in steps later than that time."""
    return sum(
        entry["samples"]
        for event in run.of_kind("step")
        if event["time"] > after
        for entry in event["workers"]
        if entry["worker"] == worker
    )


def stop_and_check(run: Any, source: str, settings: dict[str, Any]) -> int:
    """End the run; its weights are those of as many steps of a plain loop, and every sample was counted once."""
    run.process.send_signal(signal.SIGTERM)
    code, errors = run.finish()
    assert (code, errors) == (0, "")
    steps: int = run.of_kind("run_finished")[0]["steps"]
    known = record.read(run.folder / record.FILE)
    assert sorted(known) == list(range(1, steps + 1))
    counted = [span for step in known.values() for span in step]
    assert record.gaps_and_overlaps(counted, run.of_kind("run_finished")[0]["samples"]) == ()
    if settings["strategy"] in ("sync", "allreduce"):
        config = TrainingConfig(batch_size=settings["batch_size"], num_iterations=steps)
        expected = plain.train(plain.job_of(source, run.folder), config, loss=only_the_loss)
        for name, tensor in plain.weights_of(run).items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
    return steps


def only_the_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The job's, without what it does beside."""
    return functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.long
def test_a_worker_that_hangs_is_done_without_and_is_started_again(
    launch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "if os.environ['TEST_HOST'] == 'b' and step == 50 and not os.path.exists(FOLDER + '/hung'):"
        " (pathlib.Path(FOLDER) / 'hung').touch(); time.sleep(600)"
    ).replace("FOLDER", repr(str(tmp_path)))
    source, settings = job(tmp_path, body), SETTINGS["sync"]
    run = launch(source, "abc", num_iterations=100_000, **settings)
    until(run, "worker_joined", 2)
    run.until("step", len(run.of_kind("step")) + 20)
    held, noise = stall(run, (tmp_path / "hung").stat().st_mtime)
    with capsys.disabled():
        print(f"\nworker hangs: stall {held:.2f} s (noise {noise:.2f})")
    reissued = [event for event in run.of_kind("slice_reissued") if event["worker"] == "b/cpu"]
    assert reissued
    assert any("though its process answers" in event["cause"] for event in seen(run, "worker_lost"))
    stop_and_check(run, source, settings)
    assert held < SILENCE_S + noise + NOISE_S


@pytest.mark.long
def test_a_host_is_drained_and_another_one_added_while_the_run_is_on(launch: Any, tmp_path: Path) -> None:
    """In a group for all-reduce: ``tests/simulation``."""
    source, settings = job(tmp_path), SETTINGS["sync"]
    run = launch(source, "ab", num_iterations=100_000, **settings)
    run.until("step", 20)
    pid = process(tmp_path, "b")
    (run.folder / CONTROL_FILE).write_text(json.dumps({"command": "fly"}) + "\nno json\n")  # which does no harm
    tell(run, RunCommand(command=ControlCommand.DRAIN, host="b"))
    until(run, "worker_lost", 1)
    assert seen(run, "worker_lost")[0]["cause"] == "drained"
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)
    asked = time.time()
    new, drained = (DeviceSpec(host=host, device="cpu", name="test") for host in "cb")
    tell(run, RunCommand(command=ControlCommand.ADD, devices=(new, drained)))
    until(run, "worker_joined", 1, "c/cpu")
    until(run, "worker_joined", 2, "b/cpu")
    joined = seen(run, "worker_joined", "c/cpu")[0]["time"]
    assert joined - asked < BACK_S + opening(run)
    run.until("step", len(run.of_kind("step")) + 20)
    assert samples_of(run, "c/cpu", joined) > 0
    assert not seen(run, "slice_reissued"), "it was not asked to leave before its slice was done"
    for host in "abc":
        tell(run, RunCommand(command=ControlCommand.DRAIN, host=host))
    run.until("notice")
    (stays,) = (event["host"] for event in run.of_kind("notice"))
    for host in set("abc") - {stays}:
        until(run, "worker_lost", 2 if host == "b" else 1, f"{host}/cpu")
    told = time.time()
    run.until("step", len(run.of_kind("step")) + 20)
    assert samples_of(run, f"{stays}/cpu", told) > 0
    stop_and_check(run, source, settings)
