"""What something changes on the coordinator alone: in the job, its model, its optimizer or its data."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from remote_agent.training.data.datasets import as_dataset
from remote_agent.training.errors import JobError
from remote_agent.training.user_code import job_values
from remote_agent.training.user_code.head_copies import HeadCopies
from remote_agent.training.user_code.job_values import read_by_loss

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


def of_job(job: object) -> HeadCopies:
    model = nn.Linear(3, 3)
    return HeadCopies(job, read_by_loss(job), model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("change", [annealed, next_phase, next_phase_of_all, settings, in_module, in_place])
def test_a_value_that_loss_reads_and_the_coordinator_alone_changes_is_refused(
    job: Job, change: Callable[[Job], None]
) -> None:
    copies = of_job(job)
    copies.refuse_changed()
    change(job)
    with pytest.raises(JobError, match="and loss reads it"):
        copies.refuse_changed()


def test_what_loss_does_not_read_and_what_it_writes_itself_may_change(job: Job) -> None:
    copies = of_job(job)
    job.evaluate(nn.Linear(3, 3))
    job.loss(nn.Linear(3, 3), [torch.ones(2, 3)])
    job.seen.append(2)
    job.settings.name = "b"
    copies.refuse_changed()


def test_the_message_names_the_value(job: Job) -> None:
    copies = of_job(job)
    annealed(job)
    with pytest.raises(JobError, match=r"self\.beta changed from 0\.0 to 0\.5 on the coordinator"):
        copies.refuse_changed()


def test_a_job_without_a_loss_of_its_own_and_one_with_a_criterion_are_looked_at_as_well() -> None:
    class Plain:
        pass

    class Criterion:
        loss = nn.CrossEntropyLoss()

    for job in (Plain(), Criterion()):
        of_job(job).refuse_changed()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(3, 3), nn.Dropout(0.1)
        self.tau, self.calls, self.shown = 1.0, 0, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.drop(self.layer(x)) / self.tau if self.training else x


class Points(Dataset[Any]):
    def __init__(self) -> None:
        self.noise, self.taken, self.labels = 0.0, 0, torch.zeros(8)
        self.flip = Flip()

    def __getitem__(self, index: int) -> Any:
        self.taken += 1
        return self.flip(self.labels[index] + self.noise)

    def __len__(self) -> int:
        return 8


class Flip:
    def __init__(self) -> None:
        self.chance = 0.5

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return -x if self.chance > 0.6 else x


class Whole:
    """What a script keeps of a job: callbacks can change any of it."""

    def __init__(self) -> None:
        self.net, self.data, self.scale = Net(), Points(), 1.0
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        loader = DataLoader(Subset(self.data, [1, 2, 3]), batch_size=2, collate_fn=self.collate)
        self.copies = HeadCopies(object(), {}, self.net, self.optimizer, as_dataset(loader))

    def collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(samples) * self.scale


def set_to(path: str, value: object) -> Callable[[Whole], None]:
    def change(whole: Whole) -> None:
        *way, last = path.split(".")
        setattr(functools.reduce(getattr, way, whole), last, value)

    return change


def rate(whole: Whole) -> None:
    whole.optimizer.param_groups[0]["lr"] = 0.01


def frozen(whole: Whole) -> None:
    whole.net.layer.requires_grad_(requires_grad=False)


def clipped(whole: Whole) -> None:
    with torch.no_grad():
        whole.net.layer.weight.clamp_(-0.1, 0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_to("net.tau", 0.5), "model.tau changed from 1.0 to 0.5 on the coordinator"),
        (set_to("net.drop.p", 0.5), "model.drop.p changed from 0.1 to 0.5"),
        (set_to("data.noise", 0.3), "data.noise changed from 0.0 to 0.3"),
        (set_to("data.labels", torch.ones(8)), "data.labels was changed"),
        (set_to("data.flip.chance", 0.9), "data.flip.chance changed from 0.5 to 0.9"),
        (set_to("scale", 0.5), "self.scale changed from 1.0 to 0.5"),
        (rate, "lr of the optimizer's group 0 changed from 0.1 to 0.01"),
        (frozen, "requires_grad of layer.weight changed from True to False"),
        (clipped, "layer.weight was changed"),
    ],
)
def test_what_is_changed_on_the_coordinator_alone_is_named(change: Callable[[Whole], None], words: str) -> None:
    whole = Whole()
    whole.copies.refuse_changed()
    change(whole)
    with pytest.raises(JobError, match=words):
        whole.copies.refuse_changed()


def test_what_the_jobs_code_itself_writes_or_does_not_read_may_change() -> None:
    whole = Whole()
    whole.net.eval()
    whole.net(torch.ones(2, 3))
    whole.net.shown = 1.0
    whole.data[1]
    whole.copies.refuse_changed()


def test_a_buffer_that_a_callback_sets_is_named_unless_the_models_own_code_changes_it() -> None:
    for moved in ((), ("beta",)):
        net = Net()
        net.register_buffer("beta", torch.zeros(()))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        copies = HeadCopies(object(), {}, net, optimizer, moved=moved)
        net.get_buffer("beta").fill_(0.5)
        with contextlib.nullcontext() if moved else pytest.raises(JobError, match="beta was changed"):
            copies.refuse_changed()


def test_weights_that_the_coordinator_itself_loads_are_no_change() -> None:
    whole = Whole()
    whole.net.load_state_dict(Net().state_dict())
    whole.copies.loaded()
    whole.copies.refuse_changed()


def test_what_the_code_reads_is_found_out_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 200 modules it would take 0.1 s at each look."""
    copies = of_job(job)
    monkeypatch.setattr(job_values, "functions_of", None)
    copies.refuse_changed()
    annealed(job)
    with pytest.raises(JobError, match=r"self\.beta"):
        copies.refuse_changed()
