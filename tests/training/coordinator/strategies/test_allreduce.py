"""All-reduce without a server: the weights are those of a plain loop, with any optimizer and dtype, whoever dies."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_agent.planning import units
from remote_agent.protocol import CONTROL_FILE, RunCommand, encode
from remote_agent.states import ControlCommand
from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets, record
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.job import create_model, loss_function
from tests.training import plain
from tests.training.coordinator.recovery.test_faults import until

STEPS, BATCH = 12, 30

JOB = """
import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    '''Tied, frozen and unused parameters, and two dtypes.'''

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 32)
        self.middle = MIDDLE
        self.tied = nn.Linear(32, 32, bias=False)
        self.again = nn.Linear(32, 32, bias=False)
        self.again.weight = self.tied.weight
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(7, 7)
        self.scale = nn.Parameter(torch.ones(32, dtype=torch.float64))
        self.last = nn.Linear(32, 5)

    def forward(self, x):
        x = torch.tanh(self.middle(self.first(x)))
        x = torch.tanh(self.again(torch.tanh(self.tied(x))))
        x = self.frozen(x) * self.scale.float()
        return self.last(x)


class Job:
    steps = 0

    def create_model(self):
        return Model()

    def loss(self, model, batch):
        fault(self, "computing")
        time.sleep(0.001 * len(batch[0]))  # samples that cost nothing are dealt out by noise: some get none
        return F.cross_entropy(model(batch[0]), batch[1])

    def create_optimizer(self, model, config):
        optimizer = OPTIMIZER
        def stepped(*_):
            self.steps += 1
            fault(self, "committing")
        optimizer.register_step_post_hook(stepped)
        return optimizer

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(100, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)


def fault(job, place):
    if (os.environ.get("TEST_HOST"), place, job.steps) in FAULTS:
        os.kill(os.getpid(), signal.SIGKILL)
"""
BETWEEN_THE_LEVELS = """

from remote_agent.training.worker.process_group import ProcessGroup

start = ProcessGroup._start


def fault(job, place):
    def started(group, level, *given):
        here = os.environ.get("TEST_HOST"), level, job.steps, group.membership.rank
        if here == ("b", 1, 6, 1) and len(group.membership.hosts) == 3:  # after the sums of its host
            os.kill(os.getpid(), signal.SIGKILL)
        return start(group, level, *given)

    ProcessGroup._start = started
"""
OPTIMIZERS = {
    "momentum": "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)",
    "adamw": "torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)",
    # Not elementwise: it looks at whole rows and columns.
    "adafactor": "torch.optim.Adafactor(model.parameters(), lr=0.03)",
}
Fault = tuple[str, str, int]


def job_source(optimizer: str, faults: tuple[Fault, ...] = (), middle: str = "nn.Identity()") -> str:
    source = JOB.replace("OPTIMIZER", OPTIMIZERS[optimizer]).replace("MIDDLE", middle)
    return source.replace("FAULTS", repr(faults))


@pytest.mark.ray
def test_weights_equal_those_of_a_plain_loop(launch: Any, tmp_path: Path) -> None:
    source = job_source("adafactor")
    limits = {"a": 17, "b": 9, "c": 4}
    run = started(launch, source, "abc", limits=limits)
    assert run.finish() == (0, "")
    assert any("reduce gradients among themselves" in each for each in run.of_kind("plan")[0]["reasons"])
    sizes = [worker["samples"] for worker in run.of_kind("step")[-1]["workers"]]
    assert sizes == list(limits.values())
    assert_as_plain_loop(run, source, tmp_path)


@pytest.mark.ray
def test_workers_of_a_host_sum_there_first_and_one_killed_in_mid_reduction_does_not_show(
    launch: Any, tmp_path: Path
) -> None:
    """The one that speaks for its host. Whichever it is: ``worker/test_process_group.py``, and the simulation."""
    source = job_source("adamw")
    run = started(launch, source + BETWEEN_THE_LEVELS, "abb", rebalance=False)
    assert run.finish() == (0, "")
    (lost,) = run.of_kind("worker_lost")
    assert (lost["worker"], lost["step"]) == ("b/cpu", 7)
    assert_as_plain_loop(run, source, tmp_path)


@pytest.mark.long
@pytest.mark.ray
def test_a_run_whose_only_worker_is_killed_goes_on_from_its_newest_checkpoint(launch: Any, tmp_path: Path) -> None:
    source = job_source("adamw", (("a", "computing", 8),))
    run = started(launch, source.replace("os.kill(", once(tmp_path)), "a", checkpoint_every=3, strategy="sync")
    assert run.finish() == (0, "")
    (resumed,) = run.of_kind("run_resumed")
    assert resumed["step"] in (3, 6), "the newest may have been under way"
    assert "the last worker was lost, and the weights with it" in resumed["cause"]
    config = TrainingConfig(batch_size=BATCH, num_iterations=STEPS, seed=3)
    plain.assert_equal(plain.weights_of(run), plain.train(plain.job_of(source, tmp_path), config))
    known = record.read(run.folder / record.FILE)
    assert record.gaps_and_overlaps([span for step in known.values() for span in step], STEPS * BATCH) == ()


@pytest.mark.long
@pytest.mark.ray
def test_the_same_seed_gives_the_same_bits_whatever_the_cut_and_whoever_is_lost(launch: Any, tmp_path: Path) -> None:
    settings = {"strategy": "sync", "deterministic": True, "unit": 5}
    weights = []
    for faults, limits in (((), {"a": 20, "b": 10}), ((("b", "computing", 6),), {"a": 10, "b": 20})):
        run = started(launch, job_source("adamw", faults), "ab", limits=limits, **settings)
        assert run.finish() == (0, "")
        assert len(run.of_kind("worker_lost")) == len(faults)
        sizes = [worker["samples"] for worker in run.of_kind("step")[0]["workers"]]
        assert sizes == list(limits.values())
        weights.append(plain.weights_of(run))
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


@pytest.mark.ray
def test_batch_normalisation_keeps_the_mean_of_the_units_statistics_also_in_who_comes_back(
    launch: Any, tmp_path: Path
) -> None:
    # Small steps, and not too many: what is rounded otherwise grows with them.
    source = job_source("momentum", (("c", "computing", 6),), middle="nn.BatchNorm1d(32)").replace("lr=0.1", "lr=0.01")
    slow = source.replace("def loss(self, model, batch):", "def loss(self, model, batch, step):")
    slow = slow.replace('fault(self, "computing")', 'fault(self, "computing"); time.sleep(0.05 * (step > 1))')
    run = started(
        launch,
        slow.replace("os.kill(", once(tmp_path)),
        "abc",
        strategy="sync",
        rebalance=False,
        num_iterations=100_000,
        unit=10,
    )
    until(run, "worker_joined", 2, "c/cpu")
    run.until("step", len(run.of_kind("step")) + 4)
    with (run.folder / CONTROL_FILE).open("a") as control:  # so that the weights at the end are those of c
        control.writelines(encode(RunCommand(command=ControlCommand.DRAIN, host=host)) + "\n" for host in "ab")
    for worker in ("a/cpu", "b/cpu"):
        until(run, "worker_lost", 1, worker)
    run.until("step", len(run.of_kind("step")) + 4)
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == (0, "")
    (plan,) = run.of_kind("plan")
    assert plan["strategy"] == "allreduce"
    assert any("without a server: training changes " in reason for reason in plan["reasons"])
    assert {event["host"] for event in run.of_kind("worker_lost") if event["cause"] == "drained"} == {"a", "b"}
    known = record.read(run.folder / record.FILE)
    assert [span.worker for span in known[max(known)]] == ["c/cpu"]
    ends = units.bounds(BATCH, 10)
    cuts = [[end - begin for begin, end in pairwise(ends)] for _ in known]  # whoever computed them
    trained = plain.weights_of(run)
    assert trained["middle.num_batches_tracked"] == len(cuts)
    plain.assert_equal(trained, sliced_loop(source, tmp_path, cuts))


def once(folder: Path) -> str:
    """In the place of ``os.kill(`` in a job: it kills the first time only, in whichever process."""
    mark = str(folder / "killed")
    return f"os.path.exists({mark!r}) or open({mark!r}, 'w').close() or os.kill("


def started(launch: Any, source: str, hosts: str, **config: Any) -> Any:
    settings = {"strategy": "allreduce", "num_iterations": STEPS, "batch_size": BATCH, "seed": 3} | config
    return launch(source, hosts, **settings)


def assert_as_plain_loop(run: Any, source: str, folder: Path) -> None:
    assert [step["samples"] for step in run.of_kind("step")] == [BATCH] * STEPS
    assert [event["seq"] for event in run.events()] == list(range(1, len(run.events()) + 1))
    config = TrainingConfig(batch_size=BATCH, num_iterations=STEPS, seed=3)
    trained = plain.weights_of(run)
    plain.assert_equal(trained, plain.train(plain.job_of(source, folder), config))


def sliced_loop(source: str, folder: Path, cuts: list[list[int]]) -> dict[str, torch.Tensor]:
    """The loop with a gradient sum for each part of a batch, and buffers that are averaged by samples."""
    config = TrainingConfig(batch_size=BATCH, num_iterations=STEPS, seed=3)
    job = plain.job_of(source, folder)
    model = create_model(job, config.seed)
    optimizer = job.create_optimizer(model, config)
    samples = datasets.as_dataset(job.create_data())
    order = SampleOrder(config.seed, len(samples), config.batch_size)
    for step, cut in enumerate(cuts, start=1):
        optimizer.zero_grad()
        indices, begin = order.step(step), 0
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        seen = []
        for size in cut:
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
            loss = loss_function(job)(model, datasets.fetch(samples, indices[begin : begin + size]))
            (loss * size / len(indices)).backward()
            seen.append({name: buffer.clone() for name, buffer in model.named_buffers()})
            begin += size
        optimizer.step()
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point():
                means = [each[name] * size / len(indices) for each, size in zip(seen, cut, strict=True)]
                buffer.copy_(torch.stack(means).sum(0))
    return checkpoint.portable_state(model)
