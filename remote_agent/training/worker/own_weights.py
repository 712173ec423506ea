"""The weights that a stage of a pipeline updates, and the job's optimizer over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from remote_agent.models.part import Part
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig


class OwnWeights(nn.Module):
    """Some of a model's parameters, with their names in the model."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self._own = dict(parameters)

    def named_parameters(self, *unused: Any, **options: Any) -> Any:
        return iter(self._own.items())


def owned(part: Part, stage: int, shared: Mapping[str, Sequence[int]]) -> dict[str, nn.Parameter]:
    """The trained weights that a stage updates, by name; a shared weight belongs to the first stage that uses it."""
    return {
        name: parameter
        for name, parameter in part.parameters().items()
        if parameter.requires_grad and shared.get(name, (stage,))[0] == stage
    }


def optimizer_over(
    own: Iterable[nn.Parameter], factory: Any, model: nn.Module, config: TrainingConfig
) -> torch.optim.Optimizer:
    """The job's optimizer over these parameters; its groups keep their numbers. Raises JobError."""
    optimizer, kept = job.create_optimizer(factory, model, config), {id(parameter) for parameter in own}
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) in kept]
    for parameter in [each for each in optimizer.state if id(each) not in kept]:
        del optimizer.state[parameter]
    return optimizer
