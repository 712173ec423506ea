"""Training begins with all parts of a model in training mode, and says which one was not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from remote_agent.training.worker.device.untouched import into_training, rounded


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


def test_rounded_weights_differ_by_their_last_bit_and_are_what_they_were_afterwards() -> None:
    model = nn.ParameterList(
        [torch.randn(3, 2).T, torch.zeros(2), torch.randn(2, dtype=torch.float64), torch.tensor(1j)]
    )
    before = [each.detach().clone() for each in model]
    with rounded(model):
        assert not any(torch.equal(now, then) for now, then in zip(list(model)[:3], before, strict=False))
        assert all(torch.allclose(now, then, rtol=3e-7) for now, then in zip(model, before, strict=True))
    assert all(torch.equal(now, then) for now, then in zip(model, before, strict=True))


def test_weights_that_other_workers_share_are_rounded_in_a_copy() -> None:
    model = nn.Linear(3, 2)
    shared = {name: each.data for name, each in model.named_parameters()}
    before = {name: each.clone() for name, each in shared.items()}
    with rounded(model, in_place=False):
        for name, each in model.named_parameters():
            assert torch.equal(shared[name], before[name])
            assert not torch.eq(each, before[name]).any()
            assert torch.allclose(each, before[name], rtol=1e-6)
    for name, each in model.named_parameters():
        assert each.data_ptr() == shared[name].data_ptr()
