"""What the measurement before the first step finds out about the model."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.shared.findings import Findings
from remote_agent.training.shared.flat import FlatTensors
from remote_agent.training.worker.device import held_values, profiling
from remote_agent.training.worker.device.additivity import Additivity
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.profiling import Profiler

CPU = torch.device("cpu")


class Averaged(nn.Module):
    """A network, and a copy that is set to it in each forward pass, without ``requires_grad_(False)``."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.average = copy.deepcopy(self.net).requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            for average, own in zip(self.average.parameters(), self.net.parameters(), strict=True):
                average.copy_(own)
        return self.net(x)


@pytest.mark.parametrize(("frozen", "changed"), [(False, {"average.weight", "average.bias"}), (True, set())])
def test_a_trained_parameter_that_follows_another_is_seen_to_change_though_it_is_equal_at_first(
    frozen: bool, changed: set[str]
) -> None:
    torch.manual_seed(0)
    model = Averaged(frozen=frozen).train()
    first = copy.deepcopy(model.state_dict())
    computer = SliceComputer(
        model,
        lambda network, batch: network(batch).square().mean(),
        datasets.as_dataset(torch.randn(12, 3)),
        CPU,
        seed=0,
    )
    profiler = Profiler(computer, model, FlatTensors(model, CPU), CPU, np.arange(12), None)
    profiler.measure((2, 4), 0.01, 8)
    measured = profiler.check()
    assert measured.usage.changed == changed
    assert all(torch.equal(value, first[name]) for name, value in model.state_dict().items())


def objects(network: nn.Module, batch: Tensor) -> Tensor:
    """A mean over samples, of which few have a loss."""
    total = torch.zeros(())
    for sample in batch:
        total = total + network(sample).square().mean() if sample[0] > 1 else total
    return total / len(batch)


@pytest.mark.parametrize(("rare", "words"), [(True, ""), (False, "does not depend on a trained parameter")])
def test_some_samples_may_have_a_loss_without_a_gradient_but_not_all(rare: bool, words: str) -> None:
    model = nn.Linear(3, 2)
    samples = torch.zeros(12, 3)
    samples[7, 0] = 2.0 * rare
    computer = SliceComputer(model, objects, datasets.as_dataset(samples), CPU, seed=0)
    profiler = Profiler(computer, model, FlatTensors(model, CPU), CPU, np.arange(12), None)
    if words:
        with pytest.raises(JobError, match=words):
            profiler.measure((2, 4), 0.01, 12)
    else:
        profiler.measure((2, 4), 0.01, 12)  # the sample is not among those
        measured = profiler.check()
        assert measured.usage.sometimes == {"weight", "bias"}
        assert not measured.findings.together


class Features(nn.Module):
    """Has a table in an attribute, and keeps what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.table, self.kept = nn.Linear(3, 2), torch.tensor([1.0, 2.0, -1.0]), torch.zeros(1)

    def forward(self, x: Tensor) -> Any:
        self.kept = self.net(x * self.table)
        return self.kept


def test_tensors_beside_parameters_are_told_as_create_model_made_them() -> None:
    assert held_values.beside(Features()) == {"model.table": (3, 2.0, 6.0), "model.kept": (1, 0.0, 0.0)}


class Observer(nn.Module):
    """Has a buffer that gets its shape in the first call, as the observers of quantization have."""

    least: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.register_buffer("least", torch.zeros(0))

    def forward(self, x: Tensor) -> Any:
        out = self.net(x)
        self.least.resize_(2).copy_(out.detach().amin(0))
        return out


def test_a_buffer_that_gets_another_shape_is_refused_by_its_name() -> None:
    model = Observer().train()
    data = datasets.as_dataset(torch.randn(12, 3))
    computer = SliceComputer(model, lambda network, batch: network(batch).square().mean(), data, CPU, seed=0)
    profiler = Profiler(computer, model, FlatTensors(model, CPU), CPU, np.arange(12), None)
    with pytest.raises(JobError, match=r"changes the shape of least from \[0\] to \[2\]") as error:
        profiler.measure((2, 4), 0.01, 8)
    assert "in create_model" in error.value.hint


def test_a_slow_device_is_measured_with_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2 ms a sample, with limits of some milliseconds in place of seconds."""
    called: list[int] = []

    def loss(network: nn.Module, batch: Tensor) -> Any:
        called.append(len(batch))
        time.sleep(0.002 * len(batch))
        return network(batch).square().mean()

    def largest(look_s: float, slice_s: float) -> tuple[int, int]:
        """Samples of a call while sizes are measured, and while the loss is compared."""
        called.clear()
        model = nn.Linear(3, 2).train()
        computer = SliceComputer(model, loss, datasets.as_dataset(torch.randn(64, 3)), CPU, seed=0)
        profiler = Profiler(computer, model, FlatTensors(model, CPU), CPU, np.arange(64), None)
        with monkeypatch.context() as patch:
            patch.setattr(profiling, "LOOK_S", look_s)
            patch.setattr(profiling, "SLICE_S", slice_s)
            patch.setattr(profiling, "LARGE_S", 1e-6)
            patch.setattr(
                Additivity,
                "check",
                lambda own: called.append(-len(own._indices)) or Findings(),
            )
            profiler.measure((2, 64), 0.0, 64)
            profiler.check()
        return max(called), -min(called)

    assert largest(look_s=9.0, slice_s=9.0) == (64, 12)
    slow = largest(look_s=0.002, slice_s=0.02)
    assert 2 <= slow[0] <= 10
    assert slow[1] == 4


@pytest.mark.parametrize(("again", "most"), [(False, 64), (True, 12)])
def test_a_job_that_was_checked_before_is_checked_again_with_a_few_samples(again: bool, most: int) -> None:
    called: list[int] = []

    def loss(network: nn.Module, batch: Tensor) -> Any:
        called.append(len(batch))
        return network(batch).square().mean()

    model = nn.Linear(3, 2).train()
    computer = SliceComputer(model, loss, datasets.as_dataset(torch.randn(64, 3)), CPU, seed=0)
    profiler = Profiler(computer, model, FlatTensors(model, CPU), CPU, np.arange(64), None)
    profiler.measure((2, 64), 0.0, 64)
    called.clear()
    assert profiler.check(again=again).findings.apart >= 0
    assert max(called) == most


class Recurrent(nn.Module):
    """A recurrent layer, whose hidden state is of ``rows`` samples, or (0) of those of the call before."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.layer, self.hidden = nn.RNN(3, 4, batch_first=True), torch.zeros(1, rows, 4) if rows else None

    def forward(self, x: Tensor) -> Any:
        out, hidden = self.layer(x[:, None], self.hidden)
        self.hidden = self.hidden if self.hidden is not None and self.hidden.shape[1] == 8 else hidden.detach()
        return out


@pytest.mark.parametrize(("rows", "count"), [(8, 8), (0, 2)])
def test_code_that_takes_only_one_number_of_samples_is_told_so(rows: int, count: int) -> None:
    with pytest.raises(
        JobError, match=rf"xpected hidden.*; {count} of the same samples at a time can be computed"
    ) as error:
        measured_of(Recurrent(rows))
    assert "any number of samples" in error.value.hint


def test_other_errors_are_not_put_down_to_the_number_of_samples() -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            if (x == SAMPLES[3]).all(1).any():
                raise ValueError("a bad sample")
            return super().forward(x)

    with pytest.raises(JobError, match="ValueError") as error:
        measured_of(Picky(3, 2))
    assert "at a time" not in error.value.cause


SAMPLES = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))


def measured_of(model: nn.Module) -> None:
    computer = SliceComputer(
        model.train(), lambda net, batch: net(batch).square().mean(), datasets.as_dataset(SAMPLES), CPU, seed=0, most=4
    )
    profiler = Profiler(computer, model, FlatTensors(model, CPU), CPU, np.arange(12), None)
    profiler.measure((2, 4), 0.01, 8)
    profiler.check()
