"""Gives the engine the settings of a run, which :mod:`remote_agent.settings` defines."""

from remote_agent.settings import (
    OUTER_OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    STREAMS,
    TrainingConfig,
)

__all__ = [
    "OUTER_OPTIMIZERS",
    "PRECISIONS",
    "SCHEDULES",
    "STREAMS",
    "TrainingConfig",
]
