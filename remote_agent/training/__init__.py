"""The training engine trains one PyTorch model on devices of different speed, with Ray actors.

It is laid out by process: ``coordinator`` (plans, issues and recovers the steps of a run), ``worker`` (computes a
device's part of a step), ``server`` (holds a shard of the parameters). They share ``wire`` (sends gradients and
weights), ``data`` (the samples and their order), ``checkpoint``, ``user_code`` (the job's own files and functions) and
``shared`` (messages, flat buffers, calls through Ray).

Reading order: ``job`` and ``config`` (the model and its settings), ``trainer`` (the API below), ``coordinator.engine``
and ``coordinator.loop`` (a run), ``coordinator.strategies`` (a step), ``worker.actor``, ``server.actor``.
"""

from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.reporting.callbacks import Callback
from remote_agent.training.coordinator.reporting.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from remote_agent.training.errors import ConfigError, TrainingError
from remote_agent.training.factories import (
    ModelFactory,
    WithEvaluation,
    WithLoss,
    WithMetrics,
    WithOptimizer,
    WithScheduler,
)
from remote_agent.training.result import TrainingResult
from remote_agent.training.trainer import DistributedTrainer

__all__ = [
    "CSVLogger",
    "Callback",
    "ConfigError",
    "DistributedTrainer",
    "ModelFactory",
    "TensorBoardLogger",
    "TrainingConfig",
    "TrainingError",
    "TrainingResult",
    "WandbLogger",
    "WithEvaluation",
    "WithLoss",
    "WithMetrics",
    "WithOptimizer",
    "WithScheduler",
]
