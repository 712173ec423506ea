"""What is trained stays so, and gradients are dense."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from remote_agent.training.errors import JobError
from remote_agent.training.worker.device.trained import TrainedParameters, refuse_sparse


@pytest.mark.parametrize(("before", "word"), [(True, "off"), (False, "on")])
def test_a_parameter_whose_training_begins_or_ends_is_named(before: bool, word: str) -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(before)
    parameters = TrainedParameters(model)
    parameters.check()
    model.bias.requires_grad_(not before)
    with pytest.raises(JobError, match=f"requires_grad {word} for bias"):
        parameters.watching(lambda network, batch: network(batch).sum())(model, torch.ones(1, 2))


def test_a_sparse_gradient_is_refused_with_what_to_do() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(JobError, match="weight has sparse gradients") as error:
        refuse_sparse(model)
    assert "sparse=False" in error.value.hint


class Late(nn.Module):
    """Has a layer that forward makes, or puts in another's place."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.name = nn.Linear(2, 2), name

    def forward(self, x: torch.Tensor) -> Any:
        setattr(self, self.name, nn.Linear(2, 2))
        return self.first(x)


@pytest.mark.parametrize("name", ["second", "first"])
def test_a_parameter_that_forward_makes_is_named(name: str) -> None:
    model = Late(name)
    loss = TrainedParameters(model).watching(lambda network, batch: network(batch).sum())
    with pytest.raises(JobError, match=f"the parameter {name}.weight was made by forward"):
        loss(model, torch.ones(1, 2))
