"""The training engine: one PyTorch model on devices of unlike speed, through a parameter server on Ray actors.

Reading order: ``job`` and ``config`` (what is trained and how), ``speed`` and ``placing`` (who gets how much, and what
runs where), ``dataplane`` (which way gradients and weights go: streamed through ``exchange`` or ``lane``, or as Ray
objects), ``working`` and ``devices`` (the worker's part of a step), ``server``, ``strategies`` (a step, seen by the
coordinator), ``data`` (which samples, and that each one counts), ``saving`` (checkpoints, and going on from them),
``faults`` (what is done when something breaks), ``actors``, ``engine`` and ``loop`` (a run), ``run`` (the coordinator),
``trainer`` (the API below).
"""

from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import ConfigError, TrainingError
from remote_agent.training.trainer import DistributedTrainer, TrainingResult

__all__ = ["ConfigError", "DistributedTrainer", "TrainingConfig", "TrainingError", "TrainingResult"]
