"""Training begins with all parts of a model in training mode, and says which one was not."""

from __future__ import annotations

from typing import Any

from torch import nn

from remote_agent.training.worker.device.untouched import into_training


class Kept(nn.Dropout):
    """Stays in evaluation mode."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


def test_a_part_that_was_in_evaluation_mode_is_named_unless_it_stays_there() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()).eval())
    assert "create_model gave 1 in evaluation mode" in into_training(model)
    assert all(module.training for module in model.modules())
    assert into_training(model) == ""
    assert into_training(nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()) == ""
    assert into_training(nn.Sequential(nn.Linear(2, 2), Kept().eval())) == ""
