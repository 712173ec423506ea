"""How the workers train together; each strategy is one file behind one small interface.

``sync`` has two forms that give the same weights: ``streamed`` wherever ``dataplane`` allows it, else ``sync``, over
Ray objects. ``ssp`` and ``async`` are both ``stale``, with and without a bound.

A strategy turns a :class:`~remote_agent.training.session.Session` into a sequence of applied steps. It writes the
events of its own decisions (who was lost, what was issued again, how shares moved); the engine writes the steps,
checkpoints and the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

from remote_agent.training.config import TrainingConfig
from remote_agent.training.session import Session, StepReport
from remote_agent.training.speed.shares import DeviceProfile, split, step_seconds
from remote_agent.training.strategies import local_sgd, stale
from remote_agent.training.strategies.allreduce import AllReduce
from remote_agent.training.strategies.local_sgd import LocalSgd
from remote_agent.training.strategies.stale import Stale
from remote_agent.training.strategies.streamed import Streamed
from remote_agent.training.strategies.sync import Sync


class Strategy(Protocol):
    """The interface."""

    def steps(self, session: Session) -> Iterator[StepReport]:
        """Train until the configured number of steps is applied, or ``session.stopping()`` says to end early.

        Raises:
            TrainingError: the run can't go on.
        """
        ...


def create(name: str, session: Session) -> Strategy:
    """The strategy of that name; :class:`TrainingConfig` has checked that it exists."""
    sync: type[Strategy] = Sync if session.weights is not None else Streamed
    kinds: dict[str, type[Strategy]] = {
        "sync": sync,
        "ssp": Stale,
        "async": Stale,
        "local_sgd": LocalSgd,
        "allreduce": AllReduce,
    }
    return kinds[name]()


def fixed(config: TrainingConfig, devices: int) -> TrainingConfig:
    """``config`` with what stays as it is at the run's beginning, however many ``devices`` there are later."""
    if config.strategy != "local_sgd":
        return config
    return dataclasses.replace(config, local_batch=local_sgd.local_batch(config, devices))


def first_cut(
    config: TrainingConfig, profiles: Sequence[DeviceProfile], least: int
) -> tuple[tuple[int, ...], float, tuple[str, ...]]:
    """For the plan: samples of each device in the first step, its predicted seconds, and what else is to be said.

    Args:
        config: the run's.
        profiles: of the devices.
        least: samples of a slice that is not empty.

    Raises:
        ValueError: the batch does not fit into the devices' memory.
    """
    if config.strategy == "local_sgd":
        batch = local_sgd.local_batch(config, len(profiles))
        steps = local_sgd.local_steps(config.local_steps, batch, profiles)
        cut = tuple(batch * count for count in steps)
        about = f"a round is {', '.join(map(str, steps))} local steps of {batch} samples; outer={config.outer}"
        about += ", exchanged while the next one is computed" if config.overlap else ""
        return cut, local_sgd.round_seconds(cut, batch, profiles), (about,)
    cut = split(config.batch_size, profiles, least)
    said = (stale.about(config),) if config.strategy in ("ssp", "async") else ()
    return cut, step_seconds(cut, profiles), said
