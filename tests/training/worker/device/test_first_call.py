"""What only the first call of a loss sets, outside of the model's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.shared import findings
from remote_agent.training.shared.findings import Findings
from remote_agent.training.shared.flat import FlatTensors
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.first_call import Held
from remote_agent.training.worker.device.profiling import Profiler

CPU = torch.device("cpu")
CONFIG = TrainingConfig(num_iterations=1, batch_size=8)


def measured(model: nn.Module, job: Any = None, data: Any = None) -> Findings:
    """Measure it as a worker does, and decide what follows."""
    loss = job.loss if job is not None else lambda network, batch: network(batch).square().mean()
    given = datasets.as_dataset(torch.randn(12, 3) if data is None else data)
    computer = SliceComputer(model, loss, given, CPU, seed=0)
    profiler = Profiler(computer, model, FlatTensors(model, CPU), CPU, np.arange(12), job)
    profiler.measure((2, 4), 0.01, 8)
    found = profiler.check()
    findings.settle(CONFIG, found.findings, found.usage.changed, 2)
    return found.findings


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)


class Normalised(Net):
    """Normalises by the mean of the first batch."""

    mean: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        if self.mean is None:
            self.mean = x.mean(0)
        return self.net(x - self.mean)


class Filled(Net):
    """A codebook in a buffer, which is filled once; a flag beside it says so."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.zeros(4, 2))
        self.is_filled = False

    def forward(self, x: Tensor) -> Any:
        out = self.net(x)
        if not self.is_filled:
            self.codes.copy_(out.detach().mean(0) + torch.arange(4.0)[:, None])
            self.is_filled = True
        return out - self.codes[torch.cdist(out, self.codes).argmin(1)].detach()


class Projected(Net):
    """Draws a projection when it is first called."""

    projection: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        if self.projection is None:
            self.projection = torch.randn(3, 3)
        return self.net(x @ self.projection)


class Job:
    """Divides its loss by the first one."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}

    def loss(self, model: Any, batch: Tensor) -> Any:
        loss = model.net(batch).square().mean()
        return loss / self.first.setdefault("loss", loss.item())


@pytest.mark.parametrize(
    ("make", "job", "name"),
    [
        (Normalised, None, "model.mean"),
        (Filled, None, "model.is_filled"),
        (Projected, None, "model.projection"),
        (Net, Job, "self.first['loss']"),
    ],
    ids=["a mean", "a flag", "random numbers", "a loss"],
)
def test_what_the_first_batch_or_its_random_numbers_give_is_refused_by_name(
    make: Callable[[], nn.Module], job: Callable[[], Any] | None, name: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(JobError, match="the first call of loss sets ") as refused:
        measured(make().train(), job() if job is not None else None)
    assert f"sets {name}, " in refused.value.cause


class Cached(Net):
    """Makes tables when they are first needed, keeps the first weights, and counts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None
        self.begun: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        if self.table is None:
            self.table = torch.arange(3.0)
        if not self.begun:
            self.begun = [each.detach().clone() for each in self.net.parameters()]
        away = sum((one - other).square().sum() for one, other in zip(self.net.parameters(), self.begun, strict=True))
        return self.net(x * self.table) + away


def test_what_any_first_batch_gives_is_used_and_keeps_the_first_weights() -> None:
    torch.manual_seed(0)
    model = Cached().train()
    first = [each.detach().clone() for each in model.net.parameters()]
    measured(model)
    assert all(torch.equal(one, other) for one, other in zip(first, model.begun, strict=True))


class Samples(Dataset[Tensor]):
    """Less the mean of the first sample that was taken, or of all."""

    def __init__(self, *, of_all: bool) -> None:
        self.rows, self.of_all = torch.randn(12, 3), of_all
        self.mean: Tensor | None = None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        if self.mean is None:
            self.mean = self.rows.mean(0) if self.of_all else self.rows[index]
        return self.rows[index] - self.mean


class Scaling:
    """Puts samples together, scaled by the first batch."""

    scale: float = 0.0

    def __call__(self, samples: list[Tensor]) -> Tensor:
        rows = torch.stack(samples)
        self.scale = self.scale or float(rows.std())
        return rows / self.scale


def test_what_the_first_samples_leave_in_the_data_is_refused_by_name() -> None:
    torch.manual_seed(0)
    loader: Any = DataLoader(Samples(of_all=True), batch_size=4, collate_fn=Scaling())
    for data, name in ((Samples(of_all=False), "Samples.mean"), (loader, "Scaling.scale")):
        with pytest.raises(JobError, match=f"the first call of loss sets {name}, "):
            measured(Net().train(), _OfNet(), data)
    measured(Net().train(), _OfNet(), Samples(of_all=True))


class _OfNet:
    def loss(self, model: Any, batch: Tensor) -> Any:
        return model.net(batch).square().mean()


def test_what_was_held_is_put_back_wherever_it_lies() -> None:
    class Beside:
        count = 1

    class Owner:
        def __init__(self) -> None:
            self.beside, self.list, self.table = Beside(), [1, 2], torch.zeros(2)

    owner, model = Owner(), Cached()
    held = Held(owner, model)
    owner.table += 1
    owner.list.append(3)
    vars(owner)["later"] = 1
    owner.beside.count = 2
    model(torch.ones(2, 3))
    held.put_back()
    assert owner.table.sum() == 0
    assert owner.list == [1, 2]
    assert "later" not in vars(owner)
    assert owner.beside.count == 1
    assert model.table is None


class Opened:
    """Reads rows, and can be opened once only; it is of a library's class."""

    count = 0

    def __init__(self) -> None:
        type(self).count += 1
        assert self.count == 1, "it is open already"
        self.rows = torch.randn(12, 3)


Opened.__module__ = "torch.storage"
