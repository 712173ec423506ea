"""Decides whether gradients and weights are streamed to servers, or reduced among the workers. Pure.

Servers (``wire``, ``shared_memory``) hold float32 numbers that every slice has a gradient for, and step the optimizer
one chunk of the buffer at a time. What does not fit that (batch normalisation's statistics, other dtypes, optimizers
that look at whole parameters, sums in a fixed order) is reduced among the workers, each of which has the job's own
optimizer on the job's own model (``strategies.allreduce``).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from remote_agent.training.shared import flat

ELEMENTWISE: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
)
"""Optimizers whose rule treats each number by itself: on a part of a parameter they do what they do on the whole."""


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts:
    """What the decision needs to know about the job's optimizer.

    Attributes:
        elementwise: it is exactly one of :data:`ELEMENTWISE`, and nothing about it was changed.
        groups: names of the trained parameters in each of its parameter groups.
        hooked: its step has hooks, which may change what is not trained too.
    """

    kind: str
    elementwise: bool
    groups: tuple[tuple[str, ...], ...]
    hooked: bool = False


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What the measurement saw, over all devices; names of parameters.

    Attributes:
        never: trained, and without a gradient each time.
        sometimes: with a gradient one time and without another.
        changed: changed by forward or backward themselves.
        buffers: names of the model's buffers and frozen parameters that were changed.
        terms: of the loss, each with a weight of its own.
    """

    never: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    terms: int = 1

    def __or__(self, other: Usage) -> Usage:
        both = self.never & other.never
        return Usage(
            never=both,
            sometimes=self.sometimes | other.sometimes | (self.never ^ other.never),
            changed=self.changed | other.changed,
            buffers=self.buffers | other.buffers,
            terms=max(self.terms, other.terms),
        )


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """What is in the flat buffer.

    Attributes:
        groups: numbers that belong to each of the optimizer's parameter groups, in the same order.
        watched: trained parameters that are left out, since they had no gradient: they must not get one.
    """

    names: tuple[str, ...]
    groups: tuple[int, ...]
    watched: tuple[str, ...]


def obstacles(
    deterministic: bool, dtypes: Mapping[str, str], optimizer: OptimizerFacts, usage: Usage, clips: bool = False
) -> tuple[str, ...]:
    """Why the model can't be streamed, one sentence each; empty when it can.

    Args:
        deterministic: units are to be added up in their order.
        dtypes: of the trained parameters, by name.
        clips: the gradient is clipped by its norm, that of parameters included that no step is made for.
    """
    others = {dtype for name, dtype in dtypes.items() if dtype != "float32" and name not in usage.never}
    found = []
    if deterministic:
        found.append("deterministic=true adds units up in their order")
    if usage.buffers:
        found.append(f"training changes {_some(usage.buffers)}, not trained")
    if usage.terms > 1:
        found.append(f"loss has {usage.terms} terms with weights of their own, and a step sums {usage.terms} gradients")
    if others:
        found.append(f"parameters are {' and '.join(sorted(others))}")
    if not optimizer.elementwise:
        found.append(f"the optimizer {optimizer.kind} may look at more than one number at a time")
    if usage.sometimes:
        found.append(f"{_some(usage.sometimes)} had a gradient in some slices only")
    outside = dtypes.keys() - usage.never - {name for group in optimizer.groups for name in group}
    if clips and outside:
        found.append(f"clip_norm counts {_some(outside)}, which the optimizer does not have")
    if not any(name not in usage.never for group in optimizer.groups for name in group):
        found.append("no parameter that the optimizer has got a gradient")
    return tuple(found)


def plan(numels: Mapping[str, int], optimizer: OptimizerFacts, usage: Usage) -> StreamPlan:
    """The buffer of a model without :func:`obstacles`; ``numels`` are the sizes of its trained parameters."""
    parts = [[name for name in group if name not in usage.never] for group in optimizer.groups]
    return StreamPlan(
        names=tuple(name for part in parts for name in part),
        groups=tuple(sum(numels[name] for name in part) for part in parts),
        watched=tuple(name for group in optimizer.groups for name in group if name in usage.never),
    )


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")


# --- The job's optimizer ---------------------------------------------------------------------------------------------


def facts(model: nn.Module, optimizer: torch.optim.Optimizer) -> OptimizerFacts:
    """What ``optimizer`` is, over the trained parameters of ``model``."""
    names = {id(parameter): name for name, parameter in flat.trained(model).items()}
    groups = tuple(
        tuple(names[id(parameter)] for parameter in group["params"] if id(parameter) in names)
        for group in optimizer.param_groups
    )
    kind, hooked = type(optimizer).__name__, _hooked(optimizer)
    return OptimizerFacts(kind=kind, elementwise=_elementwise(optimizer), groups=groups, hooked=hooked)


def _hooked(optimizer: torch.optim.Optimizer) -> bool:
    return any(getattr(optimizer, name, None) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"))


def _elementwise(optimizer: torch.optim.Optimizer) -> bool:
    if type(optimizer) not in ELEMENTWISE or "step" in vars(optimizer):  # a scheduler wraps the step method
        return False
    if _hooked(optimizer):
        return False
    known = set(inspect.signature(type(optimizer)).parameters) | {"params", "decoupled_weight_decay"}
    return all(set(group) <= known for group in optimizer.param_groups)


def part_of(optimizer: torch.optim.Optimizer, group: int, part: nn.Parameter) -> torch.optim.Optimizer:
    """An optimizer like ``optimizer`` with the options of its parameter group number ``group``, over ``part`` alone."""
    options: dict[str, Any] = {key: value for key, value in optimizer.param_groups[group].items() if key != "params"}
    accepted = inspect.signature(type(optimizer)).parameters
    if "fused" in accepted and not any(options.get(variant) for variant in ("foreach", "differentiable", "capturable")):
        options["fused"] = True  # one pass over the memory instead of several; the same rule
    made = type(optimizer)([part], **{key: value for key, value in options.items() if key in accepted})
    made.param_groups[0].update(options)
    return made
