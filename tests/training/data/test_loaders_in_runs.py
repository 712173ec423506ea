"""Runs on two unequal workers over a data loader: the weights are those of a plain loop over the same loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional

from remote_agent.training.checkpoint import checkpoint
from remote_agent.training.data import order_record, record
from remote_agent.training.job import create_model
from tests.training import plain
from tests.training.coordinator.recovery.takeover.test_takeover import kill_coordinator, until_it_can_be_taken_over

LIMITS = {"a": 40, "b": 4}
"""Most samples of each worker: together they have room for each batch, and unequal shares."""

JOB = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

def generator():
    return torch.Generator().manual_seed(5)

class Samples(Dataset):
    def __init__(self):
        self.x = torch.randn(61, 8, generator=generator())
        self.y = (self.x[:, :3] + 0.3 * self.x[:, 3:6]).argmax(1)

    def __len__(self):
        return 61

    def __getitem__(self, index):
        assert self.y[index] != 2 or not EXCLUDED, "it has no weight"
        return self.x[index, : 4 + index % 5], self.y[index]

def padded(samples):
    x = torch.nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
    return x, torch.stack([y for _, y in samples])

class Longer:
    def __iter__(self):
        for size in (3, 7, 20, 1):
            yield list(range(size, 2 * size))

class Batches:
    def __iter__(self):
        data = Samples()
        for begin, end in ((0, 9), (9, 30), (30, 33)):
            yield padded([data[index] for index in range(begin, end)])

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 3)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(nn.functional.pad(x, (0, 8 - x.shape[1])))))

class Job:
    def create_model(self):
        return Model()

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def create_data(self):
        return DATA
"""

WEIGHTED = """DataLoader(
            Samples(), batch_size=16, collate_fn=padded,
            sampler=WeightedRandomSampler([float(y != 2) for y in Samples().y], 70, generator=generator()),
        )"""


def job_of(data: str, *, excluded: bool = False) -> str:
    return JOB.replace("DATA", data).replace("EXCLUDED", str(excluded))


def looped(source: str, folder: Path, epochs: int) -> dict[str, Tensor]:
    """The weights after so many epochs of the textbook's loop."""
    job = plain.job_of(source, folder)
    model = create_model(job, 3)
    optimizer = job.create_optimizer(model, None)
    loader = job.create_data()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return checkpoint.portable_state(model)


def samples_of_steps(run: Any) -> list[int]:
    return [event["samples"] for event in run.of_kind("step")]


@pytest.mark.long
@pytest.mark.ray
def test_a_run_goes_on_in_the_middle_of_a_sampled_epoch(launch: Any, tmp_path: Path) -> None:
    source = job_of(WEIGHTED)
    first = launch(source, "ab", limits=LIMITS, num_iterations=7, seed=3)
    assert first.finish() == (0, "")
    onward = launch(source, "ab", limits=LIMITS, epochs=3, seed=3, resume=first)
    assert onward.finish() == (0, "")
    plain.assert_equal(plain.weights_of(onward), looped(source, tmp_path, 3))


@pytest.mark.ray
def test_a_batch_samplers_batches_are_the_steps_whatever_their_sizes(launch: Any, tmp_path: Path) -> None:
    source = job_of("DataLoader(Samples(), batch_sampler=Longer(), collate_fn=padded)")
    run = launch(source, "ab", limits=LIMITS, epochs=2, seed=3)
    assert run.finish() == (0, "")
    assert samples_of_steps(run) == [3, 7, 20, 1] * 2
    plain.assert_equal(plain.weights_of(run), looped(source, tmp_path, 2))


@pytest.mark.ray
def test_batches_that_an_iterable_yields_are_the_steps_whatever_their_shapes(launch: Any, tmp_path: Path) -> None:
    source = job_of("Batches()")
    run = launch(source, "ab", limits=LIMITS, num_iterations=7, seed=3)
    assert run.finish() == (0, "")
    assert samples_of_steps(run) == [9, 21, 3, 9, 21, 3, 9]
    job = plain.job_of(source, tmp_path)
    model = create_model(job, 3)
    optimizer = job.create_optimizer(model, None)
    batches = [*job.create_data(), *job.create_data(), *job.create_data()][:7]
    for x, y in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    plain.assert_equal(plain.weights_of(run), checkpoint.portable_state(model))
    joined = launch(source, "ab", limits=LIMITS, num_iterations=7, seed=3, batch_size=10)
    code, _ = joined.finish()
    (failed,) = joined.of_kind("run_failed")
    assert code == 1
    assert "can't be joined to steps of other sizes" in failed["cause"]
    assert "leave batch_size out" in failed["hint"]


@pytest.mark.long
@pytest.mark.ray
def test_a_coordinator_that_takes_over_uses_the_epoch_that_was_drawn(launch: Any, tmp_path: Path) -> None:
    source = job_of(WEIGHTED).replace("import torch\n", "import os, time\nimport torch\n", 1)
    source += (
        "\n    def loss(self, model, batch):"
        "\n        time.sleep(0.005 * len(batch[0]))"
        "\n        return nn.functional.cross_entropy(model(batch[0]), batch[1])\n"
        # Who asks this sampler later gets another order.
        "\nclass Once(WeightedRandomSampler):"
        "\n    def __iter__(self):"
        "\n        self.generator.manual_seed(os.getpid())"
        "\n        return super().__iter__()\n"
    )
    source = source.replace("sampler=WeightedRandomSampler(", "sampler=Once(")
    run = launch(source, "ab", limits=LIMITS, epochs=4, seed=3, measure_seconds=0.1, stream="network")
    until_it_can_be_taken_over(run, 7)
    kill_coordinator(run)
    assert run.finish()[0] == 0
    assert run.of_kind("run_resumed")
    assert samples_of_steps(run) == [16, 16, 16, 16, 6] * 4
    drawn = order_record.OrderRecord(run.folder, run.folder)
    job = plain.job_of(source, tmp_path)
    model = create_model(job, 3)
    optimizer, loader = job.create_optimizer(model, None), job.create_data()
    for epoch in range(4):
        samples = drawn.epoch(epoch).indices.tolist()
        for begin in range(0, len(samples), 16):
            indices = samples[begin : begin + 16]
            x, y = loader.collate_fn([loader.dataset[index] for index in indices])
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    plain.assert_equal(plain.weights_of(run), checkpoint.portable_state(model))


@pytest.mark.ray
def test_rounds_of_local_sgd_use_each_sample_that_was_drawn_once(launch: Any) -> None:
    source = job_of(WEIGHTED.replace("batch_size=16", "batch_size=16, drop_last=True"), excluded=True)
    run = launch(source, "ab", limits=LIMITS, strategy="local_sgd", epochs=3, seed=3, local_steps=3)
    assert run.finish() == (0, "")
    spans = [span for spans in record.read(run.folder / record.FILE).values() for span in spans]
    assert record.gaps_and_overlaps(spans, 3 * 64) == ()
