"""What the user's code changes besides trained parameters: teachers, queues, counters."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.compatible.case import BATCH, Case, case, small
from remote_agent.training.config import TrainingConfig

AREA = "state and hooks"


class Student(nn.Module):
    """A network, and a teacher that is its moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.student = small(4)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.student(x)

    @torch.no_grad()
    def follow(self) -> None:
        """Move the teacher towards the student."""
        for mine, its in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.mul_(0.8).add_(its, alpha=0.2)


class Teaching(Case):
    """Consistency with the teacher, beside cross entropy."""

    def create_model(self) -> nn.Module:
        return Student()

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        assert isinstance(model, Student)
        return torch.optim.SGD(model.student.parameters(), lr=config.learning_rate, momentum=0.9)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Student)
        out = model(batch[0])
        return functional.cross_entropy(out, batch[1]) + functional.mse_loss(out, model.teacher(batch[0] * 0.9))


@case("ema-teacher-in-loss", AREA)
class TeacherInLoss(Teaching):
    """A frozen teacher that the loss moves towards the student."""

    killed = quick = True

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Student)
        model.follow()
        return super().loss(model, batch)


@case("ema-teacher-in-hook", AREA)
class TeacherInHook(Teaching):
    """A frozen teacher that a hook of the optimizer's step moves towards the student."""

    quick = True

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        assert isinstance(model, Student)
        optimizer = super().create_optimizer(model, config)
        optimizer.register_step_post_hook(lambda *_: model.follow())
        return optimizer


@case("byol", AREA)
class Byol(Teaching):
    """BYOL: the student predicts the teacher's view; the teacher follows in the loss."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Student)
        model.follow()
        total = torch.zeros(())
        for left, right in ((batch[0], batch[0].flip(1)), (batch[0].flip(1), batch[0])):
            total = total + 1 - functional.cosine_similarity(model(left), model.teacher(right)).mean()
        return total


class Queue(nn.Module):
    """A network, and a queue of the newest keys."""

    queue: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network = small(4)
        self.register_buffer("queue", functional.normalize(torch.randn(24, 4), dim=1))

    def forward(self, x: Tensor) -> Any:
        return functional.normalize(self.network(x), dim=1)


@case("moco-queue", AREA)
class Moco(Case):
    """MoCo: a queue of keys in a buffer, which each batch is pushed into."""

    expect, says = "refused", "queue"

    def create_model(self) -> nn.Module:
        return Queue()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(model, Queue)
        keys = model(batch[0] * 0.9)
        near = (model(batch[0]) * keys.detach()).sum(1, keepdim=True)
        logits = torch.cat([near, model(batch[0]) @ model.queue.clone().T], 1) / 0.2
        with torch.no_grad():
            model.queue.copy_(torch.cat([keys, model.queue])[: len(model.queue)])
        return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))


@case("moco-undivided", AREA)
class MocoWhole(Moco):
    """The same with unit=batch_size: the batch is undivided."""

    expect = "equal"
    settings: ClassVar = {"unit": BATCH}


class LateQueue(Queue):
    """A queue that is filled from the third batch on."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))


class Counting(nn.Module):
    """Counts its forward passes, and scales by the count."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network = small(4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.count += 1
        return self.network(x) / self.count


@case("counter", AREA)
class Counter(Case):
    """A buffer that counts steps, which the model's output depends on."""

    killed = quick = True

    def create_model(self) -> nn.Module:
        return Counting()


class CountingSamples(Counting):
    """Counts samples."""

    def forward(self, x: Tensor) -> Any:
        self.count += len(x)
        return self.network(x)


@case("sample-counter", AREA)
class SampleCounter(Case):
    """A buffer that counts samples."""

    expect, says = "refused", "count"

    def create_model(self) -> nn.Module:
        return CountingSamples()


class RunningMean(nn.Module):
    """Keeps a moving mean of its inputs, by samples, and subtracts it."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network = small(4)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Any:
        out = self.network(x - self.mean)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
        return out


@case("running-mean", AREA)
class Running(Case):
    """A buffer with a moving mean of the inputs: its mean by samples is the whole batch's."""

    killed = True

    def create_model(self) -> nn.Module:
        return RunningMean()


class RunningMaximum(RunningMean):
    """Keeps the largest inputs."""

    def forward(self, x: Tensor) -> Any:
        out = self.network(x / (1 + self.mean))
        self.mean.copy_(torch.maximum(self.mean, x.detach().amax(0)))
        return out


@case("running-maximum", AREA)
class Maximum(Case):
    """A buffer with the largest inputs so far: the mean of maxima is not the maximum."""

    expect, says = "refused", "mean"

    def create_model(self) -> nn.Module:
        return RunningMaximum()


@case("codebook", AREA)
class Codebook(Case):
    """A vector quantiser's codebook, a buffer that moves to the mean of its samples: no mean over samples."""

    expect, says = "refused", "codes"

    def create_model(self) -> nn.Module:
        return Quantised()


class Quantised(nn.Module):
    """Straight-through codes."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network, self.out = small(4), nn.Linear(4, 3)
        self.register_buffer("codes", torch.randn(5, 4))

    def forward(self, x: Tensor) -> Any:
        z = self.network(x)
        chosen = torch.cdist(z, self.codes).argmin(1)
        codes = self.codes[chosen]
        with torch.no_grad():
            for number in set(chosen.tolist()):
                self.codes[number].lerp_(z[chosen == number].mean(0), 0.3)
        return self.out(z + (codes - z).detach())


class Clipped(nn.Module):
    """Its forward pass clips its own weights, as in a Wasserstein critic."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small(4)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.clamp_(-0.25, 0.25)
        return self.network(x)


@case("clipped-weights", AREA)
class ClippedWeights(Case):
    """The forward pass clips the trained weights."""

    expect, says = "refused", "changes the trained parameter"

    def create_model(self) -> nn.Module:
        return Clipped()


class Scheduled(nn.Module):
    """Keeps its step in a Python attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.calls = small(4), 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.network(x) / self.calls


@case("python-counter", AREA)
class PythonCounter(Case):
    """A count in a Python attribute, which the output depends on: other on each worker."""

    expect, says = "refused", "same"

    def create_model(self) -> nn.Module:
        return Scheduled()
