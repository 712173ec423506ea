"""The whole model on a worker, before it gets a stage, and after it gave one up: its weights come and go in place."""

from __future__ import annotations

import gc

import torch
from torch import nn

from remote_agent.models.nf4 import DIGEST, is_other, other_base
from remote_agent.models.part import Part
from remote_agent.training import job
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.stages import StageWeights
from remote_agent.training.user_code.checks import SAME
from remote_agent.training.worker.device import backend
from remote_agent.training.worker.staging import StageParts


@torch.no_grad()
def renew(parts: StageParts) -> None:
    """Build the whole model on the CPU again, as ``create_model`` gives it, after a stage kept only its own part.

    Raises:
        JobError: ``create_model`` failed, or gave another model than before.
    """
    model = parts.model
    Part(model, parts.blocks, parts.seams, 0, 0).move("cpu")  # free its memory before the new one takes some
    gc.collect()  # an optimizer and its scheduler refer to each other
    backend.of(parts.compute.device).release()
    fresh = job.create_model(parts.factory, parts.config.seed, parts.config)
    weights, modules = dict(fresh.named_parameters()), dict(fresh.named_modules())
    try:
        for name, parameter in model.named_parameters():
            parameter.data = weights[name].data
        for place, module in model.named_modules():
            for name, _ in module.named_buffers(recurse=False):
                setattr(module, name, getattr(modules[place], name))
    except (KeyError, AttributeError, RuntimeError) as error:
        raise JobError(f"create_model gave another model than before: {error}", hint=SAME) from error


def bring(model: nn.Module, weights: StageWeights) -> None:
    """Have these numbers in the model, by name.

    Raises:
        ValueError: they are of another model.
        JobError: they belong beside other frozen weights.
    """
    own = flat.carried(model)
    with torch.no_grad():
        for name, (dtype, numbers) in weights.items():
            given = flat.from_bytes(numbers.copy(), getattr(torch, dtype.removeprefix("torch.")))
            if given.numel() != own[name].numel():
                raise ValueError(f"create_model gave another model here: {name} has {own[name].numel():,} numbers")
            if name.endswith(DIGEST) and is_other(given, own[name]):
                raise JobError(f"create_model gave another model on this host: {other_base(name)}", hint=SAME)
            own[name].copy_(given.view(own[name].shape))
