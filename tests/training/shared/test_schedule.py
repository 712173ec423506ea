"""Learning rate schedules and clipping: the same steps as in a plain loop, on every shard, in whatever order asked."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as torchs
from torch.optim.lr_scheduler import LRScheduler

from remote_agent.training.config import SCHEDULES, TrainingConfig
from remote_agent.training.errors import JobError
from remote_agent.training.shared import dataplane, schedule
from remote_agent.training.shared.schedule import Schedule, factor

STEPS = 30


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def adamw(net: nn.Module) -> Optimizer:
    first, last = net[0].parameters(), net[2].parameters()
    return AdamW([{"params": first, "lr": 0.01}, {"params": last, "lr": 0.03, "weight_decay": 0.2}])


def sgd(net: nn.Module) -> Optimizer:
    return SGD(net.parameters(), lr=0.1, momentum=0.9)


class DecayOfWeights(LRScheduler):
    """One of the user's own, which changes another option."""

    def get_lr(self) -> list[float]:
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.1 + 0.01 * self.last_epoch
        return [group["lr"] for group in self.optimizer.param_groups]


def sequence(optimizer: Optimizer) -> LRScheduler:
    parts = [torchs.LinearLR(optimizer, 0.1, total_iters=5), torchs.CosineAnnealingLR(optimizer, 25)]
    return torchs.SequentialLR(optimizer, parts, [5])


SCHEDULERS: dict[str, tuple[Callable[[nn.Module], Optimizer], Callable[[Optimizer], LRScheduler]]] = {
    "steps": (sgd, lambda optimizer: torchs.StepLR(optimizer, 4, 0.5)),
    "one cycle, with betas": (adamw, lambda optimizer: torchs.OneCycleLR(optimizer, [0.1, 0.2], total_steps=STEPS)),
    "one cycle, with momentum": (sgd, lambda optimizer: torchs.OneCycleLR(optimizer, 0.5, total_steps=STEPS)),
    "a cycle that comes back": (sgd, lambda optimizer: torchs.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3)),
    "one after the other": (adamw, sequence),
    "restarts": (adamw, lambda optimizer: torchs.CosineAnnealingWarmRestarts(optimizer, 7)),
    "by group": (adamw, lambda optimizer: torchs.LambdaLR(optimizer, [lambda t: 0.9**t, lambda t: 1 / (1 + t)])),
    "weight decay": (adamw, DecayOfWeights),
}


def train(net: nn.Module, optimizer: Optimizer, step: Callable[[int], None]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    for number in range(1, STEPS + 1):
        optimizer.zero_grad()
        net(torch.randn(5, 6, generator=generator)).square().sum().backward()
        step(number)
    return [parameter.detach() for parameter in net.parameters()]


# --- The configuration's own -----------------------------------------------------------------------------------------


@given(st.sampled_from(SCHEDULES), st.integers(0, 200), st.integers(1, 1000))
def test_the_rate_rises_through_the_warm_up_and_never_after_it(name: str, warmup: int, total: int) -> None:
    factors = [factor(name, warmup, total, step) for step in range(1, total + 1)]
    rise, rest = factors[:warmup], factors[warmup:]
    assert rise == sorted(set(rise))
    assert all(0 < value < 1 for value in rise)
    assert rest[:1] in ([1.0], [])
    assert rest == sorted(rest, reverse=True)
    assert all(0 < value <= 1 for value in rest)
    if name == "constant":
        assert set(rest) <= {1.0}


def test_linear_and_cosine_reach_zero_just_after_the_last_step() -> None:
    assert [factor("linear", 2, 6, step) for step in range(1, 8)] == pytest.approx(
        [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25, 0]
    )
    assert factor("cosine", 0, 10, 6) == pytest.approx(0.5)
    assert factor("cosine", 0, 10, 11) == pytest.approx(0)
    assert factor("cosine", 0, 10, 50) == pytest.approx(0)


# --- A job's own -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(SCHEDULERS))
def test_steps_are_those_of_the_textbook_loop(kind: str) -> None:
    make_optimizer, make_scheduler = SCHEDULERS[kind]
    plain, ours = model(), model()
    optimizer = make_optimizer(plain)
    scheduler = make_scheduler(optimizer)

    def step(_number: int) -> None:
        optimizer.step()
        if _number < STEPS:
            scheduler.step()

    expected = train(plain, optimizer, step)
    other = make_optimizer(ours)
    options = Schedule(other, make_scheduler)

    def stepped(number: int) -> None:
        options.set(other, number)
        other.step()

    for found, right in zip(train(ours, other, stepped), expected, strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("kind", sorted(SCHEDULERS))
def test_options_are_the_same_in_whatever_order_and_by_however_many_they_are_asked(kind: str) -> None:
    make_optimizer, make_scheduler = SCHEDULERS[kind]
    options = Schedule(make_optimizer(model()), make_scheduler)
    in_order = [dict(options.options(0, step)) for step in range(1, STEPS + 1)]
    asked = [step for step in range(1, STEPS + 1) for _ in range(3)]
    random.Random(5).shuffle(asked)
    again = Schedule(make_optimizer(model()), make_scheduler)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda step: dict(again.options(0, step)), asked))
    assert all(in_order[step - 1] == each for step, each in zip(asked, found, strict=True))


def test_the_optimizer_itself_stays_as_it_is() -> None:
    net = model()
    optimizer = adamw(net)
    before = [dict(group) for group in optimizer.param_groups]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Schedule(optimizer, SCHEDULERS["one cycle, with betas"][1]).options(0, 9)
    assert [dict(group) for group in optimizer.param_groups] == before
    assert dataplane.facts(net, optimizer).elementwise, "a scheduler on it would change its step method"


class With:
    """A job with a scheduler."""

    def __init__(self, make: Callable[[Optimizer], Any]) -> None:
        self.make = make

    def create_scheduler(self, optimizer: Optimizer, config: TrainingConfig) -> Any:
        return self.make(optimizer)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda _optimizer: None, "gave a NoneType"),
        (lambda _optimizer: torchs.StepLR(sgd(model()), 3), "over another optimizer"),
        (lambda _optimizer: 1 / 0, "create_scheduler.*ZeroDivisionError"),
    ],
)
def test_a_scheduler_that_can_not_be_followed_is_refused(make: Callable[[Optimizer], Any], cause: str) -> None:
    with pytest.raises(JobError, match=cause):
        schedule.create(With(make), sgd(model()), TrainingConfig())


def test_a_scheduler_that_goes_by_the_validation_is_stepped_once_an_evaluation_in_whatever_order_asked() -> None:
    def make(optimizer: Optimizer) -> LRScheduler:
        return torchs.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)

    watched = ((2, 1.0), (5, 0.5), (7, None), (10, 0.6), (12, 0.7), (20, 0.4), (21, 0.5), (22, 0.5))
    optimizer = adamw(model())
    plain, figures = make(optimizer), dict(watched)
    expected = []
    for step in range(1, STEPS + 1):
        expected.append([group["lr"] for group in optimizer.param_groups])
        if step in figures:
            figure = figures[step]
            plain.step(float("nan") if figure is None else figure)  # type: ignore[call-arg]
    ours = Schedule(adamw(model()), make)
    assert ours.plateau == "min"
    base = expected[0]
    known = 0
    for step in random.Random(6).sample(range(1, STEPS + 1), STEPS):
        if known < step - 1:  # what comes later changes nothing of what was asked for
            known = step - 1
            ours.watch(tuple(each for each in watched if each[0] <= known))
        rates = [ours.options(number, step).get("lr", base[number]) for number in (0, 1)]
        assert rates == expected[step - 1], step


def test_a_cycle_that_is_shorter_than_the_run_says_so() -> None:
    options = schedule.create(
        With(lambda optimizer: torchs.OneCycleLR(optimizer, 0.5, total_steps=5)), sgd(model()), TrainingConfig()
    )
    assert options is not None
    options.options(0, 5)
    with pytest.raises(JobError, match="the scheduler's step: ValueError: Tried to step"):
        options.options(0, 7)


def test_a_constant_rate_with_a_warm_up_is_a_schedule() -> None:
    optimizer, config = sgd(model()), TrainingConfig(warmup_steps=3, num_iterations=10)
    made = schedule.create(object(), optimizer, config)
    assert made is not None
    assert [made.options(0, step)["lr"] for step in (1, 3, 4, 9)] == pytest.approx([0.025, 0.075, 0.1, 0.1])
    assert schedule.create(object(), optimizer, TrainingConfig(schedule="linear", num_iterations=10)) is not None
    assert schedule.create(object(), optimizer, TrainingConfig()) is None


def test_an_events_rate_is_that_of_the_first_group_and_none_where_the_optimizer_has_none() -> None:
    net = model()
    config = TrainingConfig(warmup_steps=1, num_iterations=10)
    rates = schedule.Rates(adamw(net), schedule.create(object(), adamw(net), config))
    assert [rates.at(step, ()) for step in (1, 2, 3)] == pytest.approx([0.005, 0.01, 0.01])
    assert schedule.Rates(adamw(net), None).at(5, ()) == 0.01
    without = sgd(net)
    del without.param_groups[0]["lr"]
    assert schedule.Rates(without, None).at(5, ()) is None


def test_the_plan_says_that_loaded_state_of_an_optimizer_is_not_taken_over() -> None:
    net = torch.nn.Linear(2, 2)
    before = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    before.step()

    def create_optimizer(model: nn.Module, config: TrainingConfig) -> Optimizer:
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.load_state_dict(before.state_dict())
        return optimizer

    (note,) = schedule.rates_of(SimpleNamespace(create_optimizer=create_optimizer), net, TrainingConfig()).notes
    assert "loads state of earlier steps" in note
    fresh = SimpleNamespace(create_optimizer=lambda model, config: torch.optim.Adagrad(model.parameters()))
    assert schedule.rates_of(fresh, net, TrainingConfig()).notes == ()
