"""A job whose steps cost next to nothing, for what only shows after thousands of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from remote_agent.training.config import TrainingConfig


class Tiny:
    """421 parameters, 1,200 samples."""

    def create_model(self) -> nn.Module:
        """``(n, 20)`` to logits ``(n, 5)``."""
        return nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5))

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        """With a state of its own."""
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def create_data(self) -> tuple[Tensor, Tensor]:
        """Made up, with some noise in the labels."""
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(1200, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
