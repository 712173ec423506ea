"""From a run's settings to what the planner may choose. Pure."""

from __future__ import annotations

from remote_agent.planning.choice import Limits
from remote_agent.settings import TrainingConfig
from remote_agent.strategies import AUTO


def limits_of(config: TrainingConfig) -> Limits:
    """What the settings leave open: with ``strategy=auto`` the way and the hosts, else nothing.

    A setting that differs from its default is one that the user fixed.
    """
    if config.strategy != AUTO:
        return Limits(
            strategy=config.strategy,
            codec=config.codec,
            shards=config.shards,
            local_steps=config.local_steps,
            local_batch=config.local_batch,
            overlap=config.overlap,
            all_hosts=True,
        )
    usual = TrainingConfig()
    return Limits(
        inexact=config.allow == "inexact",
        codec=config.codec if config.codec != usual.codec else "",
        shards=config.shards,
        local_steps=config.local_steps if config.local_steps != usual.local_steps else 0,
        local_batch=config.local_batch,
        overlap=config.overlap or None,
    )
