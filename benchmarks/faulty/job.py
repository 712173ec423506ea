"""``hetero-tui train benchmarks/faulty/job.py:Paced``: a small network on devices whose speed a file on each host says.

A sample takes as many seconds as ``~/pace`` on the host says, by a sleep: so hosts of one computer are unlike devices,
and one can become slower while it trains. The rest (gradients, exchange, optimizer) is real. Each worker leaves its PID
in ``~/worker.pid``, so that it can be killed. The file goes to the hosts by itself, and imports nothing of ours there
but the agent. In ``Layered`` each layer takes a part of the time: for ``strategy=pipeline``, which cuts between them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from remote_agent.training.config import TrainingConfig

SAMPLES, FEATURES, CLASSES = 600, 20, 5
LAYERS = 8  # of ``Layered``
PACE_FILE, WORKER_FILE = "pace", "worker.pid"


class Paced:
    """The job."""

    config = TrainingConfig(batch_size=60, learning_rate=0.02)
    noted = 0

    def create_model(self) -> nn.Module:
        """421 parameters: ``(n, 20)`` to logits ``(n, 5)``."""
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        """Momentum, so that a step that was lost or made twice stays in the weights."""
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.9)

    def create_data(self) -> TensorDataset:
        """Made up, with some noise in the labels."""
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(SAMPLES, FEATURES, generator=generator)
        return TensorDataset(x, (x[:, :CLASSES] + 0.5 * x[:, CLASSES : 2 * CLASSES]).argmax(1))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean cross entropy, after the time that the batch takes on this host's device."""
        x, y = batch
        take_time(len(x))
        return functional.cross_entropy(model(x), y)


class TakesTime(nn.Module):
    """A layer ``(n, 20)`` to ``(n, 20)`` that takes its part of the time that ``n`` samples take."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        take_time(len(x) / LAYERS)
        return x + torch.tanh(self.linear(x))


class Layered(Paced):
    """The same with a model that can be cut."""

    def create_model(self) -> nn.Module:
        """3,465 parameters: ``(n, 20)`` to logits ``(n, 5)``."""
        return nn.Sequential(*(TakesTime() for _ in range(LAYERS)), nn.Linear(FEATURES, CLASSES))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean cross entropy."""
        x, y = batch
        return functional.cross_entropy(model(x), y)


def take_time(samples: float) -> None:
    """Sleep for as long as so many samples take on this host's device, and leave this process's PID."""
    pace = Path.home() / PACE_FILE
    if not pace.exists():  # no device: a plain loop beside
        return
    if Paced.noted != os.getpid():
        Paced.noted = os.getpid()
        fresh = Path.home() / f"{WORKER_FILE}.{os.getpid()}"
        fresh.write_text(str(os.getpid()))
        fresh.replace(Path.home() / WORKER_FILE)
    time.sleep(float(pace.read_text()) * samples)
