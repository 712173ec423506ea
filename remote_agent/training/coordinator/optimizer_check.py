"""Builds a job's optimizer and schedule once on the coordinator, before any actor: mistakes show, and idle settings."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from remote_agent.idle_settings import ASKED_BY, idle, not_asked_for
from remote_agent.kinds import nearest
from remote_agent.settings import names
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.schedule import Schedule
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.optimizer_options import OptimizerOptions
from remote_agent.training.worker.device.costs import relative_to_adamw

SOME = 1000
"""Numbers of each parameter that are compared, at most."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What is known of a job's optimizer before any actor is started.

    Attributes:
        kind: as checkpoints name it.
        relative: the time of its step, relative to AdamW's.
        options: its own, before the first step.
        plateau: ``min`` or ``max`` where its scheduler goes by the validation; empty: it does not.
        idle: a sentence for each setting that was given and has no effect.
    """

    kind: str
    relative: float
    options: OptimizerOptions
    plateau: str
    idle: tuple[str, ...]


def check(request: Request, model: nn.Module) -> Checked:
    """Build optimizer and scheduler.

    Raises:
        JobError: one failed, or ``create_optimizer`` changes the weights with each call; or a setting in which the
            trials of a sweep differ has no effect.
    """
    factory, (config, read) = request.job.factory, _noting(request.config)
    first = _weights(model)
    optimizer = job.create_optimizer(factory, model, config)
    if (changed := _weights(model)) != first:  # as it may, if a further call leaves them
        job.create_optimizer(factory, model, config)
        _refuse_changed(changed, _weights(model))
    schedule = Schedule(factory, model, config)
    schedule.options(min(2, config.num_iterations))
    without = dict(_idle(factory, request.config, read))
    for name in request.swept:
        if name in without:
            raise JobError(
                f"the trials differ in {name}, which has no effect: {without[name]}",
                hint=f"use config.{name} there, or sweep another setting" if name in ASKED_BY else "set that, too",
            )
    usual = TrainingConfig()
    given = [name for name in without if name in request.given or getattr(request.config, name) != getattr(usual, name)]
    return Checked(
        kind=schedule.kind,
        relative=relative_to_adamw(optimizer, sum(each.numel() for each in flat.trained(model).values())),
        options=schedule.base,
        plateau=schedule.plateau,
        idle=tuple(f"{name}={getattr(request.config, name)} has no effect: {without[name]}" for name in given),
    )


def _weights(model: nn.Module) -> dict[str, str]:
    """Of each parameter what tells whether it changes; one without a shape yet is left out."""
    known = [each for each in flat.trained(model).items() if not isinstance(each[1], nn.UninitializedParameter)]
    return {name: repr(flat.digest(flat.some(each, SOME))) for name, each in known}  # NaN is no change


def _refuse_changed(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name, seen in now.items():
        if before.get(name, seen) != seen:
            raise JobError(
                f"create_optimizer changes the weights ({name}), and it is called in several processes, one after the"
                " other for the same weights",
                hint="change them in create_model",
            )


def _idle(factory: Any, config: TrainingConfig, read: set[str]) -> Iterator[tuple[str, str]]:
    """Settings without effect, and why; ``read`` are those that the job's functions asked for."""
    for name, function in ASKED_BY.items():
        if getattr(factory, function, None) is not None and name not in read:
            yield name, not_asked_for(name)
    yield from idle(vars(config))


class _Noting(TrainingConfig):
    """A configuration that notes which settings are asked for."""

    def __getattribute__(self, name: str) -> Any:
        own: dict[str, Any] = object.__getattribute__(self, "__dict__")
        read: set[str] = own.get("_read", set())  # dataclasses.replace(config) asks for all, and makes one without
        read.update(own if name == "__dict__" else (name,))
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        meant = nearest(name, names())
        raise AttributeError(f"the config has no {name!r}" + (f"; did you mean {meant!r}?" if meant else ""))


def _noting(config: TrainingConfig) -> tuple[TrainingConfig, set[str]]:
    """The same configuration, and the names of the settings that it will be asked for."""
    noting, read = copy.copy(config), set[str]()
    vars(noting)["_read"] = read
    object.__setattr__(noting, "__class__", _Noting)
    return noting, read
