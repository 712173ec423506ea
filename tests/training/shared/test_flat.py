"""What of a model is not trained, and stays what it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from remote_agent.training.shared import flat


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("mask", torch.ones(2), persistent=False)


def assign(model: Model) -> None:
    model.mean = model.mean + 1


def in_place(model: Model) -> None:
    assert isinstance(model.mean, torch.Tensor)
    model.mean.add_(1)


def make_anew(model: Model) -> None:
    model.mask = torch.ones(5)


@pytest.mark.parametrize(("change", "name"), [(assign, "mean"), (in_place, "mean"), (make_anew, "")])
def test_a_buffer_that_is_changed_is_named_however_that_is_done(change: Callable[[Model], None], name: str) -> None:
    model = Model()
    bystanders = flat.LocalState(model, ())
    assert bystanders.changed() == ""
    change(model)
    assert bystanders.changed() == name
    assert flat.LocalState(model, ("mean",)).changed() == ""


def test_numbers_that_are_none_are_not_taken_for_changed() -> None:
    model = Model()
    model.register_buffer("odd", torch.tensor([float("nan"), float("inf"), -float("inf")]))
    assert flat.LocalState(model, ()).changed() == ""


@pytest.mark.parametrize(("change", "stays"), [(assign, True), (in_place, True), (make_anew, False)])
def test_a_buffer_stays_the_tensor_that_it_is_unless_it_gets_another_shape(
    change: Callable[[Model], None], stays: bool
) -> None:
    model = Model()
    anchored, mean, mask = flat.BoundBuffers(model), model.mean, model.mask
    change(model)
    anchored.settle()
    assert model.mean is mean
    assert (model.mask is mask) == stays
    if change is not make_anew:
        assert torch.equal(model.mean, torch.ones(3))
