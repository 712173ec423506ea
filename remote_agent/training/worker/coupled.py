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
from remote_agent.training.worker.device.compute import seed_everything
from remote_agent.training.worker.stage import limit_to

SCALES = (1.0, 1e-3, 1e2)
"""How large the gradient is in each step: a norm over all weights may matter for small or for large ones alone."""

MOST = 8
"""The size that a weight is cut to in each dimension."""

LARGE = 100.0
"""How large the other weight's gradient is beside the one's: norms over both show it."""


def refuse_coupled(factory: Any, model: nn.Module, config: TrainingConfig) -> None:
    """Refuse an optimizer that a pipeline's stages can't step each for itself; the weights are as they were afterwards.

    Two weights, cut to a corner, are stepped, and then one of them alone.

    Raises:
        JobError: the one is stepped in another way beside the other.
    """
    try:
        optimizer = job.create_optimizer(factory, model, config)
        groups = [[each for each in group["params"] if each.requires_grad] for group in optimizer.param_groups]
        members = max(groups, key=len)
        if len(members) < 2:
            return
        middle = len(members) // 2
        other, one = members[0], members[middle]
        both = _stepped(factory, model, config, one, [other, one])
        alone = _stepped(factory, model, config, one, [one])
    except Exception:  # noqa: BLE001 - if it is the job's mistake the first step says so
        return
    if not torch.allclose(both.diff(dim=0), alone.diff(dim=0), rtol=1e-3, atol=1e-6, equal_nan=True):
        raise JobError(
            f"the step that the optimizer {type(optimizer).__name__} makes for a weight depends on other weights (a"
            " norm over all of them?) or on random numbers, and each stage of a pipeline has only its own weights",
            hint="clip_norm clips by the norm over all stages; use an optimizer whose step looks at one weight at a"
            " time, or strategy=sync or strategy=allreduce",
        )


def _stepped(
    factory: Any, model: nn.Module, config: TrainingConfig, one: nn.Parameter, members: Sequence[nn.Parameter]
) -> Tensor:
    """The weight ``one`` before and after each of some steps of the job's optimizer over these alone."""
    weights = [each.data for each in members]
    try:
        for each in members:  # as few numbers as show it: there may be no memory for more
            count = math.prod(min(MOST, size) for size in each.shape)
            values = torch.linspace(-0.5, 1, count, device=each.device, dtype=each.dtype)
            each.data = values.view([min(MOST, size) for size in each.shape])
        optimizer = job.create_optimizer(factory, model, config)
        limit_to(optimizer, {str(number): each for number, each in enumerate(members)})
        seed_everything(config.seed, one.device)
        found = [one.detach().clone()]
        for scale in SCALES:
            for each in members:
                each.grad = torch.linspace(-1, 1, each.numel(), device=each.device, dtype=each.dtype).view(each.shape)
                each.grad *= scale if each is one else LARGE * scale
            optimizer.step()
            found.append(one.detach().clone())
        return torch.stack(found)
    finally:
        for each, data in zip(members, weights, strict=True):
            each.data, each.grad = data, None
