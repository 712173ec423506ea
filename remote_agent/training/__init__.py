"""The training engine: one PyTorch model on devices of unlike speed, through a parameter server on Ray actors.

Reading order: ``job`` and ``config`` (what is trained and how), ``shares``, ``measure`` and ``balance`` (who gets how
much), ``dataplane`` (which way gradients and weights go: streamed through ``exchange`` or ``lane``, or as Ray objects),
``siting`` (which hosts hold a part of the parameter server: ``links`` measures, ``sharding`` decides), ``worker``,
``streaming``, ``server`` and ``strategies`` (a step), ``data``, ``sources``, ``order`` and ``record`` (which samples,
and that each one counts), ``checkpoint``, ``optimizer_state`` and ``resuming`` (going on), ``actors``, ``engine`` and
``loop`` (a run), ``run`` (the coordinator), ``trainer`` (the API below).
"""

from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import ConfigError, TrainingError
from remote_agent.training.trainer import DistributedTrainer, TrainingResult

__all__ = ["ConfigError", "DistributedTrainer", "TrainingConfig", "TrainingError", "TrainingResult"]
