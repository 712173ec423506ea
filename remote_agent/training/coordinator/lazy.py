"""Gives lazy layers (``nn.LazyLinear``) their shapes, on the coordinator, before anything uses the parameters.

Workers and servers get the shapes with the first weights: ``load_state_dict`` gives a lazy layer the loaded shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from remote_agent.training import job
from remote_agent.training.coordinator import sources
from remote_agent.training.coordinator.sources import Source
from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.user_code import seeding

_HINT = "run one batch through the model in create_model, or use layers with shapes"

_SAMPLES = 2


def give_shapes(model: nn.Module, factory: Any, source: Source) -> None:
    """Give lazy layers their shapes by one loss of the first samples; all other changes of the model are undone.

    Torch's random state is the one after ``create_model``, so that the first weights are those of a plain loop's first
    forward pass.

    Args:
        model: as ``create_model`` returned it; without lazy layers nothing is done.

    Raises:
        JobError: the data can only be read once, the loss failed, or it does not use a lazy layer.
    """
    if not any(map(is_lazy, _tensors(model).values())):
        return
    if not isinstance(source, sources.Indexed):
        raise JobError("the model has lazy layers, and the data can only be read from its beginning", hint=_HINT)
    data = source.for_workers()
    with seeding.apart():
        batch = datasets.fetch(data, np.arange(min(_SAMPLES, len(data))))
    before = {name: tensor.clone() for name, tensor in _tensors(model).items() if not is_lazy(tensor)}
    job.guard("loss, for the shapes of lazy layers", job.loss_function(factory), model.eval(), batch)
    model.train()
    with torch.no_grad():
        for name, tensor in _tensors(model).items():
            if is_lazy(tensor):
                raise JobError(f"the loss of a batch gave the lazy parameter {name} no shape", hint=_HINT)
            if name in before:
                tensor.copy_(before[name])


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
