"""A worker that comes later, and a run that goes on, have all that an optimizer's ``state_dict()`` gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import (
    BESIDE,
    NotPortable,
    TrainingState,
    for_workers,
    into_optimizer,
    of_average,
    of_optimizer,
    pack,
    unpack,
)
from remote_agent.training.config import TrainingConfig
from remote_agent.training.shared import dataplane, optimizer_options
from remote_agent.training.shared.average import WeightAverage
from remote_agent.training.worker.served import StreamedEngine


class Rule(torch.optim.Optimizer):
    """A base."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, {"lr": 0.1} | options)

    @property
    def all(self) -> list[nn.Parameter]:
        return [each for group in self.param_groups for each in group["params"]]


class InGroup(Rule):
    """Counts in its group, as schedule-free optimizers and Prodigy do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, k=0, d=0.1, warm=False, last=[])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        group["k"], group["d"], group["warm"] = group["k"] + 1, group["d"] / 3 + 0.01, True
        group["last"].append(torch.tensor(group["k"]))
        for each in self.all:
            each.sub_(each.grad, alpha=group["d"] / (group["k"] + len(group["last"])))


class Lists(Rule):
    """Keeps lists, mappings, flags and None in its state, as SOAP and Shampoo do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in self.all:
            state = self.state[each]
            if not state:
                state["GG/~#"] = [[], torch.zeros(2), {"x": torch.zeros_like(each)}]
                state["Q"], state["kind"], state["warm"] = None, "first", True
            elif state["Q"] is None:
                state["Q"], state["kind"] = (torch.ones(()), 2), "second"
            state["GG/~#"][1] += 1
            state["GG/~#"][2]["x"] += each.grad
            scale = state["GG/~#"][1][0] + (state["Q"][1] if state["kind"] == "second" else 0)
            each.sub_(state["GG/~#"][2]["x"], alpha=float(0.1 / scale))


class Averaging(Rule):
    """Has an average by the name of the run's own, and a count in its state beside the parameters'."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["step"] = self.state.get("step", 0) + 1  # type: ignore[index, call-overload]
        for each in self.all:
            self.state[each].setdefault("ema", torch.zeros_like(each)).lerp_(each.grad, 0.1)
            each.sub_(self.state[each]["ema"], alpha=1 / self.state["step"])  # type: ignore[index]


class Masters(Rule):
    """Keeps another dtype than its parameter's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in self.all:
            state = self.state[each]
            state.setdefault("master", each.double()).sub_(each.grad, alpha=1e-3)
            state["signs"] = each.grad.sign().to(torch.int8)
            each.copy_(state["master"])


class Together(Rule):
    """Wraps another optimizer and has its state, as SAM does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.base = torch.optim.Adam(self.all, lr=0.1)
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def step(self, closure: Any = None) -> None:
        self.base.step()


class Lookahead(Rule):
    """Has slow weights and another optimizer within, and says so in a ``state_dict`` of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.base, self.count = torch.optim.SGD(self.all, lr=0.1, momentum=0.9), 0
        self.slow = [each.detach().clone() for each in self.all]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.base.step()
        self.count += 1
        for each, slow in zip(self.all, self.slow, strict=True):
            slow.lerp_(each, 0.3)
            if self.count % 2 == 0:
                each.copy_(slow)

    def state_dict(self) -> dict[str, Any]:
        return {"base": self.base.state_dict(), "slow": self.slow, "count": self.count}

    def load_state_dict(self, state_dict: Any) -> None:
        self.base.load_state_dict(state_dict["base"])
        self.slow, self.count = state_dict["slow"], state_dict["count"]


KINDS = [InGroup, Lists, Averaging, Masters, Together, Lookahead, torch.optim.Adagrad, torch.optim.NAdam]


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
def test_who_goes_on_steps_as_if_there_had_been_no_break(kind: Callable[..., Any]) -> None:
    whole, optimizer = made(kind)
    stepped(whole, optimizer, 0, 6)
    first, optimizer = made(kind)
    stepped(first, optimizer, 0, 3)
    state = TrainingState(optimizer=of_optimizer(first, optimizer))
    for given in (state, unpack(pack(state))):
        second, later = made(kind)
        second.load_state_dict(first.state_dict())
        into_optimizer(second, later, given.optimizer)
        stepped(second, later, 3, 6)
        for expected, found in zip(whole.parameters(), second.parameters(), strict=True):
            assert torch.equal(expected, found)


def test_what_the_settings_or_a_schedule_say_is_not_remembered() -> None:
    model, optimizer = made(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    optimizer_options.begin(optimizer)
    for step in (1, 2, 3):
        optimizer_options.set_options(optimizer, ({"lr": 0.1 / step},))
        stepped(model, optimizer, step, step + 1)
    assert optimizer.param_groups[0]["lr"] < 0.1
    assert BESIDE not in of_optimizer(model, optimizer)


@pytest.mark.parametrize("kind", [*dataplane.ELEMENTWISE, torch.optim.Adafactor, torch.optim.ASGD])
def test_an_optimizer_of_torchs_keeps_nothing_beside_its_state(kind: Any) -> None:
    model, optimizer = made(lambda parameters: kind(parameters, lr=0.1))
    stepped(model, optimizer, 0, 3)
    assert BESIDE not in of_optimizer(model, optimizer)


def test_what_can_not_be_kept_is_told_and_the_average_of_the_weights_is_kept() -> None:
    model, optimizer = made(torch.optim.SGD)
    steps = SimpleNamespace(common=lambda step: torch.zeros(3))
    worker: Any = SimpleNamespace(_steps=steps, _kept={}, parts=SimpleNamespace(model=model), optimizer=optimizer)
    average, another = WeightAverage(0.9), WeightAverage(0.9)
    average.update(model.parameters())
    assert StreamedEngine.keep(worker, 1, 0)
    optimizer.state[next(model.parameters())]["rates"] = itertools.count()
    with pytest.raises(NotPortable, match="SGD remembers a count"):
        of_optimizer(model, optimizer)
    assert not StreamedEngine.keep(worker, 2, 1)
    assert [*worker._kept] == [1]
    into_optimizer(model, optimizer, of_average(model, average), another)
    assert all(torch.equal(average.of(each)["ema"], another.of(each)["ema"]) for each in model.parameters())


def test_the_state_of_another_kind_of_optimizer_is_no_use() -> None:
    model, optimizer = made(InGroup)
    stepped(model, optimizer, 0, 1)
    state = of_optimizer(model, optimizer)
    with pytest.raises(NotPortable):
        into_optimizer(nn.Linear(1, 1).requires_grad_(False), optimizer, {"weight": {"x": 1.0}})
    two = torch.optim.SGD([{"params": [each]} for each in model.parameters()])
    with pytest.raises(NotPortable, match="1 groups"):
        into_optimizer(model, two, state)


def test_a_schedule_is_followed_by_what_an_optimizer_wraps() -> None:
    model, optimizer = made(Together)
    into_optimizer(model, optimizer, {})  # as each worker does before its first step
    optimizer.param_groups[0]["lr"] = 0.0
    before = [each.detach().clone() for each in model.parameters()]
    stepped(model, optimizer, 0, 2)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_torchs_own_state_follows_a_model_in_another_dtype() -> None:
    model = nn.Linear(3, 2).bfloat16()
    optimizer = torch.optim.Adam(model.parameters())
    stepped(model, optimizer, 0, 2)
    kept = of_optimizer(model, optimizer)
    single = nn.Linear(3, 2)
    theirs = torch.optim.Adam(single.parameters())
    into_optimizer(single, theirs, kept)
    stepped(single, theirs, 2, 3)
    assert {each.dtype for state in theirs.state.values() for each in state.values()} == {torch.float32}


def test_workers_of_another_number_begin_with_the_lists_of_the_first() -> None:
    model, optimizer = made(Lists)
    stepped(model, optimizer, 0, 1)
    one = of_optimizer(model, optimizer)
    stepped(model, optimizer, 1, 3)
    mean = for_workers((one, of_optimizer(model, optimizer)), 3)[2]
    into_optimizer(model, optimizer, mean)
    assert optimizer.state[next(model.parameters())]["kind"] == "first"
