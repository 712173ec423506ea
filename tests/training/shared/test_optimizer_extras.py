"""A worker that comes later, and a run that goes on, have all that an optimizer remembers, in whatever place it is."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import logging
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import (
    TrainingState,
    for_workers,
    into_optimizer,
    of_average,
    of_optimizer,
    pack,
    unpack,
)
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared import dataplane, optimizer_extras, schedule
from remote_agent.training.shared.average import WeightAverage
from remote_agent.training.shared.portable import NotPortable
from remote_agent.training.worker.served import Served


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


class ByParameter(Rule):
    """Keeps what belongs to a parameter by the parameter, by its id and by a name, made in the first step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self._by_parameter: dict[Any, Any] = {}
        self._by_id: dict[Any, Any] = {}
        self._named: dict[str, Any] = {"layer.0/weight!": 0, "of": {}}
        self._pairs: dict[Any, Any] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for number, each in enumerate(self.all):
            own = self._by_parameter.setdefault(each, {"count": 0, "last": [torch.zeros_like(each)]})
            own["count"] += 1
            own["last"][0].add_(each.grad)
            self._by_id[id(each)] = self._by_id.get(id(each), 0) + own["count"]
            self._named["layer.0/weight!"] += 1
            self._named["of"][f"a.{number}"] = own["last"][0] * 2
            self._pairs[id(each), "m"] = (self._by_id[id(each)], None, "warm")
            scale = self._named["layer.0/weight!"] + self._pairs[id(each), "m"][0]
            each.sub_(own["last"][0] + self._named["of"][f"a.{number}"], alpha=0.1 / scale)


class Lists(Rule):
    """Keeps lists, mappings, flags and None in its state, as SOAP and Shampoo do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in self.all:
            state = self.state[each]
            if not state:
                state["GG"] = [[], torch.zeros(2), {"x": torch.zeros_like(each)}]
                state["Q"], state["kind"], state["warm"] = None, "first", True
                state["at"] = np.zeros(2, np.int64)
            elif state["Q"] is None:
                state["Q"], state["kind"] = (torch.ones(()), 2), "second"
            state["GG"][1] += 1
            state["at"] += 2
            state["GG"][2]["x"] += each.grad
            scale = state["GG"][1][0] + (state["Q"][1] if state["kind"] == "second" else 0) + int(state["at"][0])
            each.sub_(state["GG"][2]["x"], alpha=float(0.1 / scale))


class Averaging(Rule):
    """Has an average of the gradients, by the name of the run's own average of the weights."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for each in self.all:
            self.state[each].setdefault("ema", torch.zeros_like(each)).lerp_(each.grad, 0.1)
            each.sub_(self.state[each]["ema"])


class Beside(Rule):
    """Keeps a count in its state beside the parameters', a record that may not grow, and a set."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.recent: Any = collections.deque([1.0], maxlen=2)
        self.seen: set[int] = set()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.state["step"] = self.state.get("step", 0) + 1  # type: ignore[index, call-overload]
        self.recent.append(self.recent[-1] * 1.5)
        self.seen.add(len(self.seen))
        for each in self.all:
            each.sub_(each.grad, alpha=0.1 * sum(self.recent) / (self.state["step"] + len(self.seen)))  # type: ignore[index]


class Together(Rule):
    """Wraps another optimizer and has its state, as SAM does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.base = torch.optim.Adam(self.all, lr=0.1)
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def step(self, closure: Any = None) -> None:
        self.base.step()


class Rates:
    """An object of another class."""

    def __init__(self) -> None:
        self.count = 0


@dataclasses.dataclass(frozen=True)
class Record:
    total: float = 1.0


class Holding(Rule):
    """Has objects of other classes: a rule, a scheduler, generators, a tuple, a frozen record."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.rule = Rates()
        self.pair = (0, [0.0])
        self.record = Record()
        self.rates = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1, 0.9)
        self.rngs = [np.random.default_rng(1), random.Random(2)]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.rule.count += 1
        self.pair = (self.pair[0] + 1, self.pair[1])
        self.pair[1][0] += 0.5
        self.record = dataclasses.replace(self.record, total=self.record.total + 0.25)
        self.rates.optimizer.step()
        self.rates.step()
        drawn = self.rngs[0].random() + self.rngs[1].random()
        for each in self.all:
            scale = self.rule.count + self.pair[0] + self.pair[1][0] + self.record.total
            each.sub_(each.grad, alpha=0.1 * drawn * self.rates.get_last_lr()[0] / scale)


class Both(torch.optim.Optimizer):
    """Two that are stepped together, as docs/your-own-model.md has it."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        super().__init__([group for each in optimizers for group in each.param_groups], {})
        self.optimizers = optimizers

    def step(self, closure: Any = None) -> None:
        for each in self.optimizers:
            each.step()


def both(parameters: Any) -> torch.optim.Optimizer:
    members = list(parameters)
    return Both(torch.optim.SGD(members[:1], lr=0.1, momentum=0.9), torch.optim.Adam(members[1:], lr=0.1))


class Average(nn.Module):
    """An average of some weights."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.kept = nn.ParameterList([each.detach().clone() for each in parameters])
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def update(self, parameters: list[nn.Parameter]) -> None:
        self.count += 1
        for mine, each in zip(self.kept, parameters, strict=True):
            mine.lerp_(each, 0.5)


def averaging(parameters: Any) -> torch.optim.Optimizer:
    """A module and an object of another class around a hook; the weights are drawn to the average."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    members = [each for group in optimizer.param_groups for each in group["params"]]
    average, holder = Average(members), SimpleNamespace()
    holder.inner = Rates()

    @torch.no_grad()
    def draw(*_: Any) -> None:
        average.update(members)
        holder.inner.count += 1
        for mine, each in zip(average.kept, members, strict=True):
            each.lerp_(mine, 0.1 * holder.inner.count / float(average.count + 1))

    optimizer.register_step_post_hook(draw)
    return optimizer


class Method:
    """Has a hook that is a method, and one with arguments bound."""

    def __init__(self) -> None:
        self.done = [0]

    def hook(self, *_: Any) -> None:
        self.done[0] += 1

    def slower(self, optimizer: torch.optim.Optimizer, *_: Any, factor: float) -> None:
        optimizer.param_groups[0]["lr"] = factor / (1 + self.done[0])


def bound(parameters: Any) -> torch.optim.Optimizer:
    optimizer, own = torch.optim.SGD(parameters, lr=0.1), Method()
    optimizer.register_step_pre_hook(own.hook)
    optimizer.register_step_pre_hook(functools.partial(own.slower, factor=0.2))
    return optimizer


KINDS = [Private, Counting, InGroup, Slow, Drawing, Wrapping, counting_hook, patched]
KINDS += [Averaging, ByParameter, Lists, Beside, Together, Holding, both, averaging, bound, torch.optim.Adagrad]


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


class Warm(nn.Linear):
    tau = 1.0

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.tau, self.kind = 1.0, "warm"


def test_a_number_of_the_model_that_a_hook_of_the_step_changes_goes_on() -> None:
    def cooling(built: Any, _: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(built.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: setattr(built, "tau", built.tau / 2))
        return optimizer

    def begun() -> tuple[Warm, torch.optim.Optimizer]:
        model = Warm()
        return model, job.create_optimizer(SimpleNamespace(create_optimizer=cooling), model, TrainingConfig())

    first, optimizer = begun()
    stepped(first, optimizer, 0, 3)
    second, later = begun()
    into_optimizer(second, later, unpack(pack(TrainingState(optimizer=of_optimizer(first, optimizer)))).optimizer)
    assert second.tau == first.tau == 0.125
    stepped(second, later, 3, 4)
    assert (second.tau, second.kind) == (0.0625, "warm")


def test_what_the_settings_or_a_schedule_say_is_not_remembered() -> None:
    model, optimizer = made(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    rates = schedule.create(SimpleNamespace(), optimizer, TrainingConfig(schedule="cosine", num_iterations=10))
    assert rates is not None
    for step in (1, 2, 3):
        rates.set(optimizer, step)
        stepped(model, optimizer, step, step + 1)
    assert optimizer.param_groups[0]["lr"] < 0.1
    assert optimizer_extras.of(optimizer) == {}


@pytest.mark.parametrize("kind", [*dataplane.ELEMENTWISE, torch.optim.Adafactor, torch.optim.ASGD])
def test_an_optimizer_of_torchs_keeps_nothing_beside_its_state(kind: Any) -> None:
    model, optimizer = made(kind)
    stepped(model, optimizer, 0, 3)
    assert optimizer_extras.of(optimizer) == {}


class Opaque(Rule):
    """Has something that can't be kept: an iterator, or an object that it made since."""

    def __init__(self, parameters: Any, take: Callable[[Opaque], None]) -> None:
        super().__init__(parameters)
        self.take, self.lock, self.log = take, threading.Lock(), logging.getLogger("x")

    def step(self, closure: Any = None) -> None:
        self.take(self)
        self.last = print


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (lambda each: setattr(each, "rates", iter([0.1, 0.2])), "a list_iterator .rates"),
        (lambda each: setattr(each, "counts", itertools.count()), "a count .counts"),
        (lambda each: setattr(each, "made", Rates()), "a Rates .made"),
        (lambda each: setattr(each, "known", {"of": [Rates()]}), "a Rates .known"),
        (lambda each: each.state[each.all[0]].update(projector=Rates()), "a Rates"),
    ],
)
def test_what_has_changed_and_can_not_be_kept_is_told(take: Any, said: str) -> None:
    model, optimizer = made(lambda parameters: Opaque(parameters, lambda _: None))
    stepped(model, optimizer, 0, 2)
    assert of_optimizer(model, optimizer) == {}
    model, optimizer = made(lambda parameters: Opaque(parameters, take))
    stepped(model, optimizer, 0, 2)
    with pytest.raises(NotPortable, match=f"Opaque (remembers|keeps) {said}"):
        of_optimizer(model, optimizer)


@pytest.mark.parametrize("kind", [Together, Wrapping])
def test_a_schedule_is_followed_by_what_an_optimizer_wraps(kind: Any) -> None:
    model, optimizer = made(kind)
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
    with pytest.raises(NotPortable, match="the optimizer has no"):
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


def test_the_average_of_the_weights_is_kept_where_the_optimizers_state_can_not_be() -> None:
    model, optimizer = made(lambda parameters: Opaque(parameters, lambda each: setattr(each, "made", Rates())))
    average, another = WeightAverage(0.9), WeightAverage(0.9)
    for step in range(2):
        stepped(model, optimizer, step, step + 1)
        average.update(model.parameters())
    into_optimizer(model, optimizer, of_average(model, average), another)
    assert all(torch.equal(average.of(each)["ema"], another.of(each)["ema"]) for each in model.parameters())


def test_a_worker_keeps_no_step_to_go_back_to_whose_optimizer_state_can_not_be_kept() -> None:
    model, optimizer = made(lambda parameters: Opaque(parameters, lambda each: setattr(each, "made", Rates())))
    steps = SimpleNamespace(common=lambda step: torch.zeros(3))
    worker: Any = SimpleNamespace(_steps=steps, _kept={}, parts=SimpleNamespace(model=model), optimizer=optimizer)
    assert Served.keep(worker, 1, 0)
    stepped(model, optimizer, 0, 1)
    assert not Served.keep(worker, 2, 1)
    assert [*worker._kept] == [1]
