"""What the measurement before the first step finds out about the model."""

from __future__ import annotations

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
