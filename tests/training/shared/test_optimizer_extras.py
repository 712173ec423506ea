"""A worker that comes later, and a run that goes on, have all that an optimizer remembers, in whatever place it is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import TrainingState, into_optimizer, of_optimizer, pack, unpack
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared import optimizer_extras, schedule


class Rule(torch.optim.Optimizer):
    """A base."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, {"lr": 0.1} | options)

    @property
    def all(self) -> list[nn.Parameter]:
        return [each for group in self.param_groups for each in group["params"]]


class Counting(Rule):
    """Counts in an attribute."""

    steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for each in self.all:
            each.sub_(each.grad, alpha=0.1 / self.steps)


class Private(Rule):
    """Counts in a private attribute."""

    _steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._steps += 1
        for each in self.all:
            each.sub_(each.grad, alpha=0.1 / self._steps)


class InGroup(Rule):
    """Counts in its group, and keeps a number that is no short fraction."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, k=0, d=0.1, warm=False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        group["k"], group["d"], group["warm"] = group["k"] + 1, group["d"] / 3 + 0.01, True
        for each in self.all:
            each.sub_(each.grad, alpha=group["d"] / group["k"])


class Slow(Rule):
    """Lookahead, with slow weights in a list and in a mapping, and a flag."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.slow = [each.detach().clone() for each in self.all]
        self.kept = {"count": 0, "last": torch.zeros(())}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.kept["count"] += 1
        for each, slow in zip(self.all, self.slow, strict=True):
            each.sub_(each.grad, alpha=0.5)
            slow.lerp_(each, 0.3)
            if self.kept["count"] % 2 == 0:
                each.copy_(slow)


class Drawing(Rule):
    """Draws noise from a generator of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.generator = torch.Generator().manual_seed(4)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in self.all:
            each.sub_(each.grad, alpha=0.1).add_(torch.randn(each.shape, generator=self.generator), alpha=0.01)


class Wrapping(Rule):
    """Wraps another optimizer, whose state is its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.base = torch.optim.SGD(self.all, lr=0.1, momentum=0.9)
        self.param_groups = self.base.param_groups

    def step(self, closure: Any = None) -> None:
        self.base.step()


def counting_hook(parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    done, more = 0, [0]

    def slower(*_: Any) -> None:
        nonlocal done
        done += 1
        more[0] += 2
        optimizer.param_groups[0]["lr"] = 0.1 / (done + more[0])

    optimizer.register_step_pre_hook(slower)
    return optimizer


def patched(parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    step, done = optimizer.step, [0]

    def slower(closure: Any = None) -> Any:
        done[0] += 1
        optimizer.param_groups[0]["lr"] = 0.1 / done[0]
        return step()

    optimizer.step = slower  # type: ignore[method-assign]
    return optimizer


KINDS = [Private, Counting, InGroup, Slow, Drawing, Wrapping, counting_hook, patched]


def made(kind: Callable[..., torch.optim.Optimizer]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    factory = SimpleNamespace(create_optimizer=lambda built, config: kind(built.parameters()))
    return model, job.create_optimizer(factory, model, TrainingConfig())


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        for each in model.parameters():
            each.grad = torch.full_like(each, 1.0 + step)
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_file", [False, True])
def test_who_goes_on_steps_as_if_there_had_been_no_break(kind: Callable[..., Any], by_file: bool) -> None:
    whole, optimizer = made(kind)
    stepped(whole, optimizer, 0, 6)
    first, optimizer = made(kind)
    stepped(first, optimizer, 0, 3)
    state = TrainingState(optimizer=of_optimizer(first, optimizer))
    if by_file:
        state = unpack(pack(state))
    second, optimizer = made(kind)
    second.load_state_dict(first.state_dict())
    into_optimizer(second, optimizer, state.optimizer)
    stepped(second, optimizer, 3, 6)
    for expected, found in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_what_the_settings_or_a_schedule_say_is_not_remembered() -> None:
    model, optimizer = made(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    rates = schedule.create(SimpleNamespace(), optimizer, TrainingConfig(schedule="cosine", num_iterations=10))
    assert rates is not None
    for step in (1, 2, 3):
        rates.set(optimizer, step)
        stepped(model, optimizer, step, step + 1)
    assert optimizer.param_groups[0]["lr"] < 0.1
    assert optimizer_extras.of(optimizer) == {}


def test_a_schedule_that_reads_the_weights_is_refused() -> None:
    _, optimizer = made(lambda parameters: torch.optim.SGD(parameters, lr=0.1))

    def create(replica: torch.optim.Optimizer, config: TrainingConfig) -> Any:
        weights = [each for group in replica.param_groups for each in group["params"]]
        return torch.optim.lr_scheduler.LambdaLR(replica, lambda _: 1 / (1 + weights[0].norm().item()))

    with pytest.raises(JobError, match="create_scheduler"):
        schedule.create(SimpleNamespace(create_scheduler=create), optimizer, TrainingConfig())


@pytest.mark.parametrize("path", ["own.slow.7", "own.none.3", "groups.4.k", "own.steps.deep.er"])
def test_what_another_kind_of_optimizer_remembers_is_no_use(path: str) -> None:
    _, optimizer = made(Counting)
    with pytest.raises(ValueError, match="the optimizer has no"):
        optimizer_extras.into(optimizer, {path: 1.0})


class Masters(Rule):
    """Keeps float32 copies of bfloat16 weights, eight bits of each gradient, and counts in a name of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self._steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._steps += 1
        for each in self.all:
            state = self.state[each]
            master = state.setdefault("master", each.float())
            state["signs"] = each.grad.sign().to(torch.int8)
            master.sub_(each.grad, alpha=1e-3 / self._steps)
            each.copy_(master)


def test_what_is_remembered_keeps_its_type_and_private_numbers_are_carried() -> None:
    def trained(steps: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(steps):
            torch.manual_seed(step)
            for each in model.parameters():
                each.grad = torch.randn_like(each)
            optimizer.step()

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(torch.bfloat16)
        factory = SimpleNamespace(create_optimizer=lambda model, _: Masters(model.parameters()))
        return model, job.create_optimizer(factory, model, TrainingConfig())

    model, optimizer = made()
    trained(3, model, optimizer)
    other, late = made()
    other.load_state_dict(model.state_dict())
    into_optimizer(other, late, of_optimizer(model, optimizer))
    for each in (model, optimizer), (other, late):
        trained(5, *each)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert {value.dtype for value in late.state[other.weight].values()} == {torch.float32, torch.int8}  # type: ignore[index]
