"""The settings of a run, for the engine; they are defined in :mod:`remote_agent.settings`."""

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
