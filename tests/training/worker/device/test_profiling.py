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
from remote_agent.training.shared.flat import FlatTensors
from remote_agent.training.worker.device import profiling
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.profiling import Profiler

CPU = torch.device("cpu")


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


def profiler(model: nn.Module, loss: Any, samples: int) -> Profiler:
    computer = SliceComputer(model.train(), loss, datasets.as_dataset(torch.randn(samples, 3)), CPU, seed=0)
    return Profiler(computer, model, FlatTensors(model, CPU), CPU, np.arange(samples))


def test_a_buffer_that_gets_another_shape_is_refused_by_its_name() -> None:
    made = profiler(Observer(), lambda network, batch: network(batch).square().mean(), 12)
    with pytest.raises(JobError, match=r"changes the shape of least from \[0\] to \[2\]") as error:
        made.measure((2, 4), 0.01, 8)
    assert "in create_model" in error.value.hint


def test_a_slow_device_is_measured_with_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2 ms a sample, with limits of some milliseconds in place of seconds."""
    called: list[int] = []

    def loss(network: nn.Module, batch: Tensor) -> Any:
        called.append(len(batch))
        time.sleep(0.002 * len(batch))
        return network(batch).square().mean()

    def largest(slice_s: float) -> int:
        called.clear()
        monkeypatch.setattr(profiling, "SLICE_S", slice_s)
        profiler(nn.Linear(3, 2), loss, 64).measure((2, 64), 0.0, 64)
        return max(called)

    assert largest(9.0) == 64
    assert 2 <= largest(0.02) <= 10
