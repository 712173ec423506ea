"""The options of a job's optimizer and of its schedule, as every process of a run has to have them. Pure.

``create_optimizer`` and ``create_scheduler`` are called in the coordinator's process, on each server and, where the
workers make the optimizer's step, on each worker. There they could read what is the host's own: the number of its
devices, an environment variable.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from remote_agent.training.errors import JobError

Chosen = Mapping[str, object]
"""Options by where they are; empty: not known."""

STEPS = (1, 2)
"""The schedule's options are compared in these."""

_AS_FAST_AS_POSSIBLE = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""How the step is computed, which may depend on the device."""

_HINT = (
    "let create_optimizer and create_scheduler depend on model and config alone, not on a host's devices or variables"
)


_first: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[dict[str, Any]]] = weakref.WeakKeyDictionary()


def begin(optimizer: torch.optim.Optimizer) -> None:
    """Note the options of the groups before the first step."""
    _first[optimizer] = [_copies(group) for group in optimizer.param_groups]


def was_set(optimizer: torch.optim.Optimizer, group: int, options: Mapping[str, Any]) -> None:
    """Note that a schedule has set these options of a group: they are not the optimizer's own."""
    if optimizer in _first:
        _first[optimizer][group] |= _copies(options)


def changed(optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each group of a ``state_dict()``, the options that the optimizer itself has changed since :func:`begin`.

    The others are left to the job's code and the run's settings.
    """
    first = _first.get(optimizer, groups)
    return [
        {name: value for name, value in group.items() if name != "params" and not _is_equal(value, was.get(name, _NEW))}
        for group, was in zip(groups, first, strict=False)
    ]


_NEW = object()


def _copies(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: copy.deepcopy(each) if isinstance(each, (Tensor, list, dict)) else each
        for name, each in options.items()
        if name != "params"
    }


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and (one is other or bool(one == other))


class Sets(Protocol):
    """A schedule; see :class:`~remote_agent.training.shared.schedule.Schedule`."""

    def options(self, group: int, step: int) -> Mapping[str, Any]:
        """What it has set in a parameter group by ``step``."""


def chosen(optimizer: torch.optim.Optimizer, schedule: Sets | None, steps: int) -> Chosen:
    """The options of ``optimizer`` at first, and of ``schedule`` over ``steps``; raises JobError if it fails."""
    found: dict[str, object] = {"the optimizer": type(optimizer).__name__}
    for step in STEPS[: max(1, steps)]:
        for number, group in enumerate(optimizer.param_groups):
            options = {**group, **(schedule.options(number, step) if schedule is not None else {})}
            for name, value in options.items():
                if name not in _AS_FAST_AS_POSSIBLE and (plain := _plain(value)) is not None:
                    found[f"{name} of the optimizer's group {number} in step {step}"] = plain
    return found


def refuse_unlike(own: Chosen, coordinators: Chosen) -> None:
    """Raise JobError if an option is not that of the coordinator's process."""
    for name, value in own.items():
        if name in coordinators and not _is_same(value, coordinators[name]):
            raise JobError(f"{name} is {value} here, and {coordinators[name]} on the coordinator's host", hint=_HINT)


def _plain(value: object) -> object:
    """A value that is the same in two processes if it is equal; None: not known."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else None
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value if isinstance(value, bool | int | float | str) else None


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6) or (one != one and other != other)
    return one == other
