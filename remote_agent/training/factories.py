"""What a job's objects look like to a type checker; nothing has to inherit from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from remote_agent.training.config import TrainingConfig


class ModelFactory(Protocol):
    """All that a job needs to have; the other protocols are what it may have beside it."""

    def create_model(self) -> nn.Module:
        """A new model, with its first weights."""


class WithOptimizer(ModelFactory, Protocol):
    """Has an optimizer of its own; default: AdamW at ``config.learning_rate``."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Optimizer:
        """An optimizer over the model's parameters."""


class WithScheduler(ModelFactory, Protocol):
    """Has a learning rate schedule of its own; default: ``config.schedule``."""

    def create_scheduler(self, optimizer: Optimizer, config: TrainingConfig) -> LRScheduler:
        """Stepped once a step; a ``ReduceLROnPlateau`` once an evaluation."""


class WithLoss(ModelFactory, Protocol):
    """Has a loss of its own; default: cross entropy of ``(x, y)``."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Any]:
        """The mean over the batch's samples; or ``(sum, weight)``; or ``(loss, {"name": figure})``."""


class WithMetrics(ModelFactory, Protocol):
    """Measures more on the validation data than its loss."""

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """By name, a mean over the batch's samples, or a pair (sum, weight)."""


class WithEvaluation(ModelFactory, Protocol):
    """Has figures of its own for the trained model."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Called once when the run ends, on the coordinator's host."""
