"""The options of a job's optimizer are the coordinator's in every process of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from remote_agent.training.errors import JobError
from remote_agent.training.shared import optimizer_options
from remote_agent.training.shared.optimizer_options import adopt, decoded, encoded


def made(kind: Any = AdamW, groups: int = 1, **options: Any) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = kind(
        [{"params": nn.Linear(2, 2).parameters(), **options} for _ in range(groups)], lr=0.1
    )
    return optimizer


@pytest.mark.parametrize(
    "own", [{"lr": 0.2}, {"weight_decay": 0.3}, {"betas": [0.9, 0.95]}, {"lr": torch.tensor(0.5)}, {"amsgrad": True}]
)
def test_options_that_differ_become_the_coordinators(own: dict[str, Any]) -> None:
    optimizer = made(groups=2, **own, fused=False)
    adopt(optimizer, optimizer_options.of(made(groups=2, foreach=True)))
    for group in optimizer.param_groups:
        assert (group["lr"], *group["betas"], group["weight_decay"]) == pytest.approx((0.1, 0.9, 0.999, 0.01))
        assert isinstance(group["lr"], torch.Tensor) is isinstance(own.get("lr"), torch.Tensor)
        assert (group["amsgrad"], group["fused"], group["foreach"]) == (False, False, None)
    assert not any(optimizer_options.changed(optimizer, optimizer.param_groups)), "the optimizer itself changed nothing"


@pytest.mark.parametrize(("own", "says"), [(made(SGD), "is SGD with 1"), (made(groups=2), "is AdamW with 2")])
def test_another_optimizer_is_refused(own: torch.optim.Optimizer, says: str) -> None:
    with pytest.raises(JobError, match=f"{says} parameter groups? here, and AdamW with 1 parameter group on") as caught:
        adopt(own, optimizer_options.of(made()))
    assert "create_optimizer" in caught.value.hint


def test_options_come_back_from_the_wire_as_they_were() -> None:
    options = ({"lr": 0.1 + 0.2, "betas": (0.9, 1 / 3)}, {"nesterov": True, "lr": math.inf}, {})
    assert decoded(encoded(options)) == options
    assert decoded(encoded(())) == ()
    assert encoded(()) == b""
