"""Whether an optimizer's step of one weight depends on other weights: each stage of a pipeline has only its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import BESIDE, Entries, of_optimizer
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.worker.device.compute import seed_everything
from remote_agent.training.worker.own_weights import OwnWeights, optimizer_over

SCALES = (1.0, 1e-3, 1e2) * 4
"""How large the gradient is in each step: a norm over all weights may matter for small or for large ones alone.

Lookahead looks at other weights only at every fifth or tenth step.
"""

MOST = 8
"""The size that a weight is cut to in each dimension."""

LARGE = 100.0
"""How large the other weights' gradients are beside the ones': norms over all show it."""

NUMBERS = 100
"""Of each other tensor of the model, that have to stay as they are."""

_INSTEAD = "or strategy=sync or strategy=allreduce"


def refuse_coupled(factory: Any, model: nn.Module, config: TrainingConfig) -> None:
    """Refuse an optimizer that a pipeline's stages can't step each for itself; the weights are as they were afterwards.

    One or two weights of each group, cut to a corner, are stepped together, and then some of them alone: so often that
    each was stepped without each other one.

    Raises:
        JobError: one is stepped in another way beside others; what the optimizer remembers beside its weights' state
            differs by what they are; or its step changes what it does not step.
    """
    try:
        optimizer = job.create_optimizer(factory, model, config)
        members = [each for group in optimizer.param_groups for each in _some(group["params"])]
        others = _numbers(model, members)
        found = [
            [
                _stepped(factory, model, config, ones, members),
                _stepped(factory, model, config, ones, ones),
            ]
            for ones in _halves(members)
        ]
    except Exception:  # noqa: BLE001 - if it is the job's mistake the first step says so
        return
    kind = type(optimizer).__name__
    for (both, _), (alone, _) in found:
        if not torch.allclose(both.diff(dim=0), alone.diff(dim=0), rtol=1e-3, atol=1e-6, equal_nan=True):
            raise JobError(
                f"the step that the optimizer {kind} makes for a weight depends on other weights (a norm over all of"
                " them?) or on random numbers, and each stage of a pipeline has only its own weights",
                hint="clip_norm clips by the norm over all stages; use an optimizer whose step looks at one weight at a"
                f" time, {_INSTEAD}",
            )
    if not all(_same(beside, remembered) for (_, beside), (_, remembered) in found):
        raise JobError(
            f"the state_dict() of the optimizer {kind} holds things about single weights outside of its state, and a"
            " pipeline could not bring them to another stage",
            hint=f"keep what belongs to a weight in the optimizer's own self.state[weight], {_INSTEAD}",
        )
    now = _numbers(model, members)
    if changed := next((name for name, numbers in others.items() if not torch.equal(numbers, now[name])), ""):
        raise JobError(
            f"a step of the optimizer {kind}, or a hook of it, changes {changed}, which was not among the weights that"
            " it was to step, and each stage of a pipeline has only its own weights",
            hint=f"go over the weights in optimizer.param_groups, not over those of the model, {_INSTEAD}",
        )


def _some(group: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    trained = [each for each in group if each.requires_grad]
    return [trained[at] for at in sorted({0, len(trained) // 2})] if trained else []


def _halves(members: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parts of ``members``, so that of any two of them each is in a part without the other."""
    for bit in range((len(members) - 1).bit_length()):
        for side in (0, 1):
            yield [each for number, each in enumerate(members) if number >> bit & 1 == side]


def _numbers(model: nn.Module, members: Sequence[nn.Parameter]) -> dict[str, Tensor]:
    """Some numbers of all tensors of the model but ``members``, as bytes, by name."""
    left = {id(each) for each in members}
    named = [each for each in (*model.named_parameters(), *model.named_buffers()) if id(each[1]) not in left]
    return {
        name: flat.some(each, NUMBERS).clone(memory_format=torch.contiguous_format).view(torch.uint8)
        for name, each in named
        if each.numel() and each.layout == torch.strided
    }


def _same(one: Entries, other: Entries) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one
    )


def _stepped(
    factory: Any,
    model: nn.Module,
    config: TrainingConfig,
    ones: Sequence[nn.Parameter],
    members: Sequence[nn.Parameter],
) -> tuple[Tensor, Entries]:
    """Make some steps of the job's optimizer over ``members`` alone.

    Returns:
        The numbers of ``ones`` before and after each step, and what the optimizer remembers beside its state.
    """
    weights, small = [each.data for each in members], {id(each) for each in ones}
    try:
        for each in members:  # as few numbers as show it: there may be no memory for more
            count = math.prod(min(MOST, size) for size in each.shape)
            values = torch.linspace(-0.5, 1, count, device=each.device, dtype=each.dtype)
            each.data = values.view([min(MOST, size) for size in each.shape])
        optimizer = optimizer_over(members, factory, model, config)
        seed_everything(config.seed, members[0].device)
        found = [_flat(ones)]
        for scale in SCALES:
            for each in members:
                each.grad = torch.linspace(-1, 1, each.numel(), device=each.device, dtype=each.dtype).view(each.shape)
                each.grad *= scale if id(each) in small else LARGE * scale
            optimizer.step()
            found.append(_flat(ones))
        return torch.stack(found), of_optimizer(OwnWeights({}), optimizer).get(BESIDE, {})
    finally:
        for each, data in zip(members, weights, strict=True):
            each.data, each.grad = data, None


def _flat(weights: Sequence[nn.Parameter]) -> Tensor:
    detached = [each.detach() for each in weights]
    return torch.cat(
        [(torch.view_as_real(each) if each.is_complex() else each).double().flatten() for each in detached]
    )
