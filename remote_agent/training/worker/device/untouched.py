"""Computes something with the model beside training, which does not notice it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.models.nf4 import Nf4Linear
from remote_agent.models.part import has_memory
from remote_agent.training.worker.device import backend


def into_training(model: nn.Module) -> str:
    """Put a model into training mode; says if only a part of it was in evaluation mode. Empty: not so."""
    evaluating = {path: module for path, module in model.named_modules() if not module.training}
    model.train()
    part = next((path for path, module in evaluating.items() if module.training), "")
    if "" in evaluating or not part:
        return ""
    return (
        f"create_model gave {part} in evaluation mode, and training puts the whole model into training mode, as"
        " model.train() does: give it a train() of its own to keep it as it is"
    )


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """After the block each module is in the mode, training or evaluation, that it was in before it.

    A module's own ``train`` is called for that: it may do more, as one that merges adapters into frozen weights.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:  # a module comes before those in it, which follow it as a rule
            if module.training is not mode:
                module.train(mode)
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def untouched(model: nn.Module, device: torch.device, changing: Sequence[str] = ()) -> Iterator[None]:
    """After the block each module's mode and buffers, and all random generators, are as they were before it.

    Buffers of a pipeline's other stages have no memory, and nothing can be written to them.
    So are the frozen parameters among ``changing``: a loss may move them, as that of a teacher does.
    """
    buffers = [
        (module, name, buffer)
        for module in model.modules()
        if not isinstance(module, Nf4Linear)  # it has none that change, and they are most of a model
        for name, buffer in module.named_buffers("", False)
        if has_memory(buffer)
    ]
    values = [buffer.clone() for _, _, buffer in buffers]
    moved = [(each, each.detach().clone()) for name, each in model.named_parameters() if name in changing]
    generators = _generators(device)
    try:
        with modes_kept(model):
            yield
    finally:
        with torch.no_grad():
            for (module, name, buffer), value in zip(buffers, values, strict=True):
                buffer.copy_(value)
                setattr(module, name, buffer)
            for parameter, value in moved:
                parameter.copy_(value)
        _restore(generators, device)


def generators(device: torch.device) -> list[Tensor]:
    """Where torch's random generators are, on the CPU and on ``device``."""
    return [each for each in _generators(device)[:2] if each is not None]


def _generators(device: torch.device) -> tuple[Tensor, Tensor | None, Any, Any]:
    return torch.get_rng_state(), backend.of(device).generator(device), np.random.get_state(), random.getstate()


def _restore(state: tuple[Tensor, Tensor | None, Any, Any], device: torch.device) -> None:
    cpu, own, numpys, pythons = state
    torch.set_rng_state(cpu)
    if own is not None:
        backend.of(device).restore_generator(device, own)
    np.random.set_state(numpys)
    random.setstate(pythons)
