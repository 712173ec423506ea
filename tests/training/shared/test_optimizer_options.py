"""What a job's optimizer and schedule have to have in common in all processes of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared import schedule
from remote_agent.training.shared.optimizer_options import Chosen, chosen, refuse_unlike


def of(kind: Any = AdamW, scheduler: Any = None, steps: int = 10, **options: Any) -> Chosen:
    class Job:
        def create_scheduler(self, optimizer: Any, config: Any) -> Any:
            return scheduler(optimizer)

    optimizer = kind([{"params": nn.Linear(2, 2).parameters(), **options}], lr=0.1)
    factory = Job() if scheduler is not None else object()
    return chosen(optimizer, schedule.create(factory, optimizer, TrainingConfig(num_iterations=steps)), steps)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (of(lr=0.2), "lr of the optimizer's group 0 in step 1 is 0.2 here, and 0.1 on the coordinator's host"),
        (of(weight_decay=0.3), "weight_decay of the optimizer's group 0 in step 1 is 0.3 here, and 0.01"),
        (of(betas=(0.9, 0.95)), r"betas .* is \(0.9, 0.95\) here, and \(0.9, 0.999\)"),
        (of(SGD), "the optimizer is SGD here, and AdamW"),
        (of(scheduler=lambda optimizer: LambdaLR(optimizer, lambda done: 1 / (1 + done))), "in step 2 is 0.05 here"),
    ],
)
def test_options_that_differ_are_refused_with_both_values(own: Chosen, says: str) -> None:
    with pytest.raises(JobError, match=says) as caught:
        refuse_unlike(own, of())
    assert "create_optimizer" in caught.value.hint


@pytest.mark.parametrize(
    ("own", "coordinators"),
    [
        (of(), of()),
        (of(lr=torch.tensor(0.1)), of()),
        (of(lr=0.1 + 1e-9), of()),
        (of(fused=True), of(fused=False)),
        (of(foreach=True), of(capturable=True)),
        (of(note=math.nan), of(note=math.nan)),
        (of(note=object()), of(note=object())),
        (of(lr=0.3), {}),
        (of(scheduler=lambda it: OneCycleLR(it, 0.1, total_steps=1), steps=1), {}),
    ],
)
def test_how_a_step_is_computed_may_differ_and_what_is_not_known_does(own: Chosen, coordinators: Chosen) -> None:
    refuse_unlike(own, coordinators)


def test_schedules_of_other_lengths_are_told_apart_by_their_second_step() -> None:
    short, long = (of(scheduler=lambda it, to=to: CosineAnnealingLR(it, to)) for to in (100, 1000))
    with pytest.raises(JobError, match="in step 2"):
        refuse_unlike(short, long)
