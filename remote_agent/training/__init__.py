"""The training engine: one PyTorch model on devices of unlike speed, through a parameter server on Ray actors.

Laid out by process: ``coordinator`` (a run: what is planned, issued, recovered), ``worker`` (a device's part of a
step), ``server`` (a shard of the parameters). Between them: ``wire`` (how gradients and weights travel), ``data``
(which samples, and that each one counts), ``checkpoint``, ``user_code`` (the job's own files and functions) and
``shared`` (messages, flat buffers, calls through Ray).

Reading order: ``job`` and ``config`` (what is trained and how), ``trainer`` (the API below), ``coordinator.engine`` and
``coordinator.loop`` (a run), ``coordinator.strategies`` (a step), ``worker.actor``, ``server.actor``.
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
