"""State of the model that its code begins to change after the measurement is noticed in the same slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remote_agent.training.errors import StateChanged
from remote_agent.training.worker.device.trained import Still


class Model(nn.Module):
    """A trained layer, a frozen one, and buffers of several kinds."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.teacher = nn.Linear(2, 2), nn.Linear(40, 40).requires_grad_(False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.tensor([[float("nan"), float("inf"), 1.0]]))
        self.register_buffer("empty", torch.zeros(0))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda model: model.teacher.weight.lerp_(torch.ones(40, 40), 0.1), "teacher.weight"),
        (lambda model: model.teacher.bias.data.mul_(0.9), "teacher.bias"),
        (lambda model: setattr(model.teacher.bias, "data", torch.ones(40)), "teacher.bias"),
        (lambda model: model.count.add_(1), "count"),
        (lambda model: model.table.zero_(), "table"),
    ],
)
def test_a_change_is_named(change: Callable[[Any], Any], name: str) -> None:
    model = Model()
    still = Still(model, ())
    before = still.look()
    still.check(before)
    with torch.no_grad():
        change(model)
    with pytest.raises(StateChanged, match=f"begins to change {name}, which is not trained"):
        still.check(before)


def test_what_is_trained_or_known_to_change_may_change() -> None:
    model = Model()
    still = Still(model, ("count", "teacher.weight"))
    before = still.look()
    with torch.no_grad():
        for tensor in (model.layer.weight, model.count, model.teacher.weight):
            tensor.add_(1)
    still.check(before)
