"""Whether the text of a job's code says that a value is only added up and shown, or that something may go by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from remote_agent.training.worker.device import held_values


class Meter:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.val = self.avg = self.sum = self.count = 0.0

    def update(self, val: float, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self) -> str:
        return f"{self.avg:.3f}"


class Job:
    """Has a network's cross entropy; what each does beside it differs."""

    def __init__(self) -> None:
        self.meter, self.history, self.total, self.steps = Meter(), list[float](), 0.0, 0
        self.seen: dict[str, int] = {"samples": 0}
        self.correct = torch.zeros(())

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        return self.beside(loss, batch)

    def beside(self, loss: Any, batch: Any) -> Any:
        raise NotImplementedError


class Metered(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.meter.update(loss.item(), len(batch[0]))
        return loss


class Printing(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.history.append(loss.item())
        self.total += loss.item()
        self.steps += 1
        if self.steps % 10 == 0:
            print(f"{self.total / len(self.history):.3f}", self.meter)
        return loss


class Counting(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.seen["samples"] += len(batch[0])
        self.correct += (batch[1] == 0).sum()
        self.correct = self.correct.detach()
        return loss


class Figures(Job):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = functional.cross_entropy(model(batch[0]), batch[1])
        self.total = self.total + loss.item()
        self.steps += 1
        return loss, {"mean": self.total / self.steps}


@pytest.mark.parametrize("kind", [Metered, Printing, Counting, Figures])
def test_what_is_added_up_and_shown_is_only_kept(kind: type[Job]) -> None:
    assert only_kept(kind())


class Warming(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        return loss * 2 if self.steps > 1000 else loss


class Later(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        if self.steps > 1000:
            loss = loss * 2
        return loss


class ByName(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        return loss * (1 + getattr(self, "steps") // 1000)  # noqa: B009 - as users write it


class ByAlias(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        seen = self.seen
        seen["samples"] += 1
        return loss * (1 + seen["samples"] // 1000)


class ByMethod(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        return loss * self.factor()

    def factor(self) -> float:
        return 1.0 + self.steps // 1000


class ByProperty(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        return loss * self.rate

    @property
    def rate(self) -> float:
        return 1.0 + self.steps // 1000


class ByMeter(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.meter.update(loss.item(), len(batch[0]))
        return loss if self.meter.avg < 1e9 else loss * 2


class ByLength(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.history.append(loss.item())
        for _ in self.history[1000:]:
            loss = loss * 1.1
        return loss


class Ordered(Meter):
    def __gt__(self, other: float) -> bool:
        return self.avg > other


class ByOperator(Job):
    def __init__(self) -> None:
        super().__init__()
        self.meter = Ordered()

    def beside(self, loss: Any, batch: Any) -> Any:
        self.meter.update(loss.item(), len(batch[0]))
        return loss * 2 if self.meter > 1e9 else loss


def scale(job: Any) -> float:
    return 1.0 + job.steps // 1000


class ByFunction(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        return loss * scale(self)


class Stopping(Job):
    """Prints to something that may do more than show it."""

    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        self.tell(self.steps)
        return loss * self.told

    told = 1.0

    def tell(self, steps: int) -> None:
        type(self).told = 2.0 if steps > 1000 else 1.0


class InOptimizer(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        return loss

    def create_optimizer(self, model: nn.Module, config: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: optimizer.param_groups[0].update(lr=0.1 / (1 + self.steps)))
        return optimizer


class BesideUsed(Job):
    """What a function gives beside the loss is used."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss, figures = self.both(functional.cross_entropy(model(batch[0]), batch[1]))
        return loss * (1 + figures["steps"] // 1000)

    def both(self, loss: Any) -> Any:
        self.steps += 1
        return loss, {"steps": self.steps}


class Printer(Job):
    """Has a method of its own with the name of one of a list's."""

    def __init__(self) -> None:
        super().__init__()
        self.history: Any = Recorder()

    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        self.history.append(self.steps)
        return loss * self.history.factor


class Recorder:
    factor = 1.0

    def append(self, steps: int) -> None:
        self.factor = 1.0 + steps // 1000


class Chosen(Job):
    def beside(self, loss: Any, batch: Any) -> Any:
        self.steps += 1
        if self.steps % 10 == 0:
            self.total = loss.item()
            self.factor = 2.0
        return loss * getattr(self, "factor", 1.0)


@pytest.mark.parametrize(
    "kind",
    [
        Warming,
        Later,
        ByName,
        ByAlias,
        ByMethod,
        ByProperty,
        ByMeter,
        ByLength,
        ByOperator,
        ByFunction,
        Stopping,
        InOptimizer,
        BesideUsed,
        Printer,
        Chosen,
    ],
)
def test_what_something_may_go_by_is_not(kind: type[Job]) -> None:
    assert not only_kept(kind())


class Stateful(nn.Module):
    """A module that counts, and goes by that in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.layer(x) if self.calls < 1000 else self.layer(x) * 0.5


def test_modules_are_read_too() -> None:
    assert not only_kept(Metered(), Stateful())


def only_kept(job: Job, model: nn.Module | None = None) -> bool:
    torch.manual_seed(0)
    model = model or nn.Linear(4, 3)
    batch = torch.randn(6, 4), torch.arange(6) % 3
    job.loss(model, batch)
    before = held_values.reached(job, model)
    job.loss(model, batch)
    after = held_values.reached(job, model)
    assert held_values.changed(before, after), "something changes with each call"
    return held_values.is_only_kept(job, model, before, after)


class Teaching(Job):
    """Changes the weights of a module that it has, which no code of its own names."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(4, 3))

    def beside(self, loss: Any, batch: Any) -> Any:
        with torch.no_grad():
            for each in self.teacher.parameters():
                each.mul_(0.9)
        return loss + self.teacher(batch[0]).square().mean()


def test_weights_are_no_values_that_are_only_kept() -> None:
    assert not only_kept(Teaching())
