"""Defines protocols of a job's objects for type checkers; a job does not have to inherit from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from remote_agent.training.config import TrainingConfig


class ModelFactory(Protocol):
    """The only method that a factory needs; the other protocols are optional.

    A job without a ``DistributedTrainer`` also needs ``create_data()``, which returns the training data.
    """

    def create_model(self) -> nn.Module:
        """Make a new model with its initial weights."""


class WithOptimizer(ModelFactory, Protocol):
    """A job with its own optimizer; default: AdamW at ``config.learning_rate``."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Optimizer:
        """Make an optimizer over the model's parameters."""


class WithScheduler(ModelFactory, Protocol):
    """A job with its own learning rate schedule; default: ``config.schedule``."""

    def create_scheduler(self, optimizer: Optimizer, config: TrainingConfig) -> LRScheduler:
        """Make a scheduler, which is stepped once a step, or a ``ReduceLROnPlateau``, stepped once an evaluation."""


class WithLoss(ModelFactory, Protocol):
    """A job with its own loss; default: cross entropy of ``(x, y)``."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor | tuple[Any, Any] | list[Any]:
        """Return a mean over the samples, ``(sum, weight)``, or a list of these; or ``(loss, {"name": figure})``."""


class WithMetrics(ModelFactory, Protocol):
    """A job with its own validation metrics."""

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return, by name, a mean over the batch's samples, or a pair (sum, weight)."""


class WithEvaluation(ModelFactory, Protocol):
    """A job with its own metrics of the trained model."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return metrics by name; called once, on the coordinator's host, when the run ends."""
