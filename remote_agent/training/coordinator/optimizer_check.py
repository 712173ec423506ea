"""Builds a job's optimizer and schedule once on the coordinator, before any actor: mistakes show, and idle settings."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from remote_agent.kinds import nearest
from remote_agent.settings import names
from remote_agent.strategies import AUTO
from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import kind_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.request import Request
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat, schedule
from remote_agent.training.shared.optimizer_options import Chosen, chosen
from remote_agent.training.worker.device.costs import relative_to_adamw

NEEDED: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "staleness": ("strategy", ("ssp", AUTO)),
    "in_flight": ("strategy", ("pipeline", AUTO)),
    **dict.fromkeys(("local_steps", "local_batch", "overlap", "outer"), ("strategy", ("local_sgd", AUTO))),
    **dict.fromkeys(("outer_learning_rate", "outer_momentum"), ("outer", ("nesterov",))),
    "topk_fraction": ("codec", ("topk",)),
}
"""Settings that count only with certain values of another one."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What is known of a job's optimizer before any actor is started.

    Attributes:
        kind: as checkpoints name it.
        relative: the time of its step, relative to AdamW's.
        options: its own and its schedule's.
        idle: a sentence for each setting that was given and has no effect.
    """

    kind: str
    relative: float
    options: Chosen
    idle: tuple[str, ...]


def check(request: Request, model: nn.Module) -> Checked:
    """Build optimizer and scheduler.

    Raises:
        JobError: one failed; or a setting in which the trials of a sweep differ has no effect.
    """
    factory, (config, read) = request.job.factory, _noting(request.config)
    optimizer = job.create_optimizer(factory, model, config)
    options = chosen(optimizer, schedule.create(factory, optimizer, config), config.num_iterations)
    idle = dict(_idle(factory, request.config, read))
    for name in request.swept:
        if name in idle:
            raise JobError(
                f"the trials differ in {name}, which has no effect: {idle[name]}",
                hint=f"use config.{name} there, or sweep another setting" if name in _OF_JOBS else "set that, too",
            )
    usual = TrainingConfig()
    given = [name for name in idle if name in request.given or getattr(request.config, name) != getattr(usual, name)]
    return Checked(
        kind=kind_of(optimizer),
        relative=relative_to_adamw(optimizer, sum(each.numel() for each in flat.trained(model).values())),
        options=options,
        idle=tuple(f"{name}={getattr(request.config, name)} has no effect: {idle[name]}" for name in given),
    )


_OF_JOBS = ("learning_rate", "schedule", "warmup_steps")
"""Settings that a job's own optimizer or scheduler may leave out."""


def _idle(factory: Any, config: TrainingConfig, read: set[str]) -> Iterator[tuple[str, str]]:
    """Settings without effect, and why; ``read`` are those that the job's functions asked for."""
    own = {"learning_rate": "create_optimizer", "schedule": "create_scheduler", "warmup_steps": "create_scheduler"}
    for name in _OF_JOBS:
        if getattr(factory, own[name], None) is not None and name not in read:
            yield name, f"the job's {own[name]} does not use config.{name}"
    for name, (other, values) in NEEDED.items():
        if getattr(config, other) not in values:
            yield name, f"it counts with {other}={values[0]}"
    if not config.lora_rank:
        yield from ((name, "it counts with lora_rank=16 or another") for name in ("lora_alpha", "lora_targets"))


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
