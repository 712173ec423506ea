"""Values of the job that loss reads, and that something changes on the coordinator alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from remote_agent.training.errors import JobError
from remote_agent.training.user_code.job_values import read_by_loss, refuse_changed

WARMTH = {"now": 1.0}


@dataclass
class Settings:
    beta: float = 0.0
    name: str = "a"


class Job:
    phase = "first"

    def __init__(self) -> None:
        self.beta, self.best, self.calls, self.last = 0.0, 1e9, 0, 0.0
        self.settings, self.weights, self.seen = Settings(), torch.ones(3), [1]

    @property
    def forcing(self) -> float:
        return self.settings.beta

    def penalty(self, out: torch.Tensor) -> torch.Tensor:
        return self.beta * out.square().mean() * WARMTH["now"]

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        out = model(batch[0])
        self.calls += 1
        self.last = float(out.mean())
        if self.phase == "first" and self.forcing < 1:
            out = out * self.weights
        return self.penalty(out)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        self.best = min(self.best, 1.0)
        return {}


def annealed(job: Job) -> None:
    job.beta = 0.5


def next_phase(job: Job) -> None:
    job.phase = "second"


def next_phase_of_all(job: Job) -> None:
    type(job).phase = "second"


def settings(job: Job) -> None:
    job.settings.beta = 0.5


def in_module(job: Job) -> None:
    WARMTH["now"] = 0.5


def in_place(job: Job) -> None:
    job.weights.mul_(0.5)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setitem(WARMTH, "now", 1.0)
    monkeypatch.setattr(Job, "phase", "first")
    return Job()


@pytest.mark.parametrize("change", [annealed, next_phase, next_phase_of_all, settings, in_module, in_place])
def test_a_value_that_loss_reads_and_the_coordinator_alone_changes_is_refused(
    job: Job, change: Callable[[Job], None]
) -> None:
    sent = read_by_loss(job)
    refuse_changed(job, sent)
    change(job)
    with pytest.raises(JobError, match="and loss reads it"):
        refuse_changed(job, sent)


def test_what_loss_does_not_read_and_what_it_writes_itself_may_change(job: Job) -> None:
    sent = read_by_loss(job)
    job.evaluate(nn.Linear(3, 3))
    job.loss(nn.Linear(3, 3), [torch.ones(2, 3)])
    job.seen.append(2)
    job.settings.name = "b"
    refuse_changed(job, sent)


def test_the_message_names_the_value(job: Job) -> None:
    sent = read_by_loss(job)
    annealed(job)
    with pytest.raises(JobError, match=r"self\.beta changed from 0\.0 to 0\.5 on the coordinator"):
        refuse_changed(job, sent)


def test_a_job_without_a_loss_of_its_own_and_one_with_a_criterion_are_looked_at_as_well() -> None:
    class Plain:
        pass

    class Criterion:
        loss = nn.CrossEntropyLoss()

    for job in (Plain(), Criterion()):
        refuse_changed(job, read_by_loss(job))
