"""The options of a job's optimizer (learning rate, momentum, betas, ...), by parameter group.

``create_optimizer`` is called in the coordinator's process, on each server and on workers. There it could read what
differs between hosts: the number of devices, an environment variable. So the coordinator's options hold everywhere, and
what its scheduler changes travels with each step.
"""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from remote_agent.training.errors import JobError

Options = tuple[Mapping[str, Any], ...]
"""Some options of each parameter group: numbers, strings, and tuples of them. Empty: none of any group."""

_AS_FAST_AS_POSSIBLE = frozenset({"params", "param_names", "foreach", "fused", "capturable", "differentiable"})
"""How the step is computed, which may depend on the device."""


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """The class of an optimizer, and the options with which it starts."""

    kind: str
    groups: Options


def of(optimizer: torch.optim.Optimizer) -> OptimizerOptions:
    """Return the present options of ``optimizer``, but those that can't be sent."""
    groups = [{name: plain(value) for name, value in group.items()} for group in optimizer.param_groups]
    return OptimizerOptions(
        kind=type(optimizer).__name__,
        groups=tuple(
            {name: value for name, value in group.items() if value is not None and name not in _AS_FAST_AS_POSSIBLE}
            for group in groups
        ),
    )


def adopt(optimizer: torch.optim.Optimizer, given: OptimizerOptions | None) -> None:
    """Have ``optimizer``, before its first step, use the options of the coordinator's; None: it keeps its own.

    Raises:
        JobError: it is of another kind, or has another number of groups.
    """
    if given is None:
        return
    own = of(optimizer)
    if (own.kind, len(own.groups)) != (given.kind, len(given.groups)):
        raise JobError(
            f"the optimizer is {_named(own)} here, and {_named(given)} on the coordinator's host",
            hint="let create_optimizer depend on model and config alone, not on a host's devices or variables",
        )
    for group, before, now in zip(optimizer.param_groups, own.groups, given.groups, strict=True):
        into_group(group, {name: value for name, value in now.items() if before.get(name) != value})
    begin(optimizer)


def into_group(group: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Set options of a parameter group; one that is a tensor stays one."""
    for name, value in given.items():
        before = group.get(name)
        group[name] = torch.full_like(before, value) if isinstance(before, Tensor) else value


def set_options(optimizer: torch.optim.Optimizer, options: Options) -> None:
    """Set what the scheduler has set in a step."""
    for number, (group, given) in enumerate(zip(optimizer.param_groups, options, strict=bool(options))):
        into_group(group, given)
        if optimizer in _first:
            _first[optimizer][number] |= copies({name: group[name] for name in given})


def encoded(options: Options) -> bytes:
    """Encode ``options`` for a frame; no bytes for none."""
    return json.dumps(options).encode() if options else b""


def decoded(data: bytes) -> Options:
    """Decode what :func:`encoded` returned."""
    return tuple({name: _tuples(value) for name, value in group.items()} for group in json.loads(data)) if data else ()


def plain(value: object) -> object:
    """Return ``value`` if it can be sent, a tensor of one number as that; else None."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, list | tuple):
        found = tuple(map(plain, value))
        return None if None in found else found
    return value if isinstance(value, bool | int | float | str) else None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _named(options: OptimizerOptions) -> str:
    count = len(options.groups)
    return f"{options.kind} with {count} parameter group{'' if count == 1 else 's'}"


# --- What an optimizer changes itself --------------------------------------------------------------------------------

_first: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[dict[str, Any]]] = weakref.WeakKeyDictionary()


def begin(optimizer: torch.optim.Optimizer) -> None:
    """Note the options of the groups before the first step."""
    _first[optimizer] = [copies(group) for group in optimizer.param_groups]


def changed(optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each group of a ``state_dict()``, the options that the optimizer itself has changed since :func:`begin`.

    The others are left to the job's code and the run's settings.
    """
    first = _first.get(optimizer, groups)
    return [
        {name: value for name, value in group.items() if name != "params" and not is_equal(value, was.get(name, _NEW))}
        for group, was in zip(groups, first, strict=False)
    ]


_NEW = object()


def copies(options: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the options of a group by value: schedulers and optimizers change tensors in place."""
    return {
        name: copy.deepcopy(each) if isinstance(each, (Tensor, list, dict)) else each
        for name, each in options.items()
        if name != "params"
    }


def is_equal(one: object, other: object) -> bool:
    """Whether two values of an option are the same."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and (one is other or bool(one == other))
