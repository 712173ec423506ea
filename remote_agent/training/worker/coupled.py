"""Whether an optimizer's step of one weight depends on other weights: each stage of a pipeline has only its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared import optimizer_extras, portable
from remote_agent.training.worker.device.compute import seed_everything
from remote_agent.training.worker.stage import optimizer_over

SCALES = (1.0, 1e-3, 1e2) * 4
"""How large the gradient is in each step: a norm over all weights may matter for small or for large ones alone.

Lookahead looks at other weights only at every fifth or tenth step.
"""

MOST = 8
"""The size that a weight is cut to in each dimension."""

LARGE = 100.0
"""How large the other weight's gradient is beside the one's: norms over both show it."""

_INSTEAD = "or strategy=sync or strategy=allreduce"


def refuse_coupled(factory: Any, model: nn.Module, config: TrainingConfig) -> None:
    """Refuse an optimizer that a pipeline's stages can't step each for itself; the weights are as they were afterwards.

    Two weights, cut to a corner, are stepped, and then one of them alone.

    Raises:
        JobError: the one is stepped in another way beside the other; or what the optimizer remembers beside its state
            is about single weights, which may move to another stage.
    """
    try:
        optimizer = job.create_optimizer(factory, model, config)
        groups = [[each for each in group["params"] if each.requires_grad] for group in optimizer.param_groups]
        members = max(groups, key=len)
        if len(members) < 2:
            return
        middle = len(members) // 2
        other, one = members[0], members[middle]
        both, beside = _stepped(factory, model, config, one, [other, one])
        alone, remembered = _stepped(factory, model, config, one, [one])
    except Exception:  # noqa: BLE001 - if it is the job's mistake the first step says so
        return
    if not torch.allclose(both.diff(dim=0), alone.diff(dim=0), rtol=1e-3, atol=1e-6, equal_nan=True):
        raise JobError(
            f"the step that the optimizer {type(optimizer).__name__} makes for a weight depends on other weights (a"
            " norm over all of them?) or on random numbers, and each stage of a pipeline has only its own weights",
            hint="clip_norm clips by the norm over all stages; use an optimizer whose step looks at one weight at a"
            f" time, {_INSTEAD}",
        )
    by_member = any(portable.is_by_member(path, value) for path, value in beside.items())
    if (
        by_member
        or beside.keys() != remembered.keys()
        or any(not _same(beside[path], remembered[path]) for path in beside)
    ):
        raise JobError(
            f"the optimizer {type(optimizer).__name__} remembers things about single weights outside of its state, as"
            " Lookahead around another optimizer does, and a pipeline could not bring them to another stage",
            hint=f"keep what belongs to a weight in the optimizer's own self.state[weight], {_INSTEAD}",
        )


def _same(one: Tensor | float, other: Tensor | float) -> bool:
    return torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def _stepped(
    factory: Any, model: nn.Module, config: TrainingConfig, one: nn.Parameter, members: Sequence[nn.Parameter]
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """Make some steps of the job's optimizer over these weights alone.

    Returns:
        The weight ``one`` before and after each step, and what the optimizer remembers beside its state.
    """
    weights = [each.data for each in members]
    try:
        for each in members:  # as few numbers as show it: there may be no memory for more
            count = math.prod(min(MOST, size) for size in each.shape)
            values = torch.linspace(-0.5, 1, count, device=each.device, dtype=each.dtype)
            each.data = values.view([min(MOST, size) for size in each.shape])
        optimizer = optimizer_over(members, factory, model, config)
        seed_everything(config.seed, one.device)
        found = [one.detach().clone()]
        for scale in SCALES:
            for each in members:
                each.grad = torch.linspace(-1, 1, each.numel(), device=each.device, dtype=each.dtype).view(each.shape)
                each.grad *= scale if each is one else LARGE * scale
            optimizer.step()
            found.append(one.detach().clone())
        extras = optimizer_extras.of(optimizer)
        # Private ones may be caches of whatever is in them; what a step gave is compared as well.
        told = {path for path, value in extras.items() if "._" not in path or portable.is_by_member(path, value)}
        return torch.stack(found), {path: extras[path] for path in told}
    finally:
        for each, data in zip(members, weights, strict=True):
            each.data, each.grad = data, None
