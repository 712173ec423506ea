"""Learning rate schedules: the same steps as in a plain loop, also after a resume and after going back."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
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
from remote_agent.training.coordinator.schedule import Schedule, factor
from remote_agent.training.errors import JobError
from remote_agent.training.shared.optimizer_options import decoded, encoded, set_options

STEPS = 30


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def adamw(net: nn.Module) -> Optimizer:
    first, last = net[0].parameters(), net[2].parameters()
    return AdamW([{"params": first, "lr": 0.01}, {"params": last, "lr": 0.03, "weight_decay": 0.2}])


def sgd(net: nn.Module) -> Optimizer:
    return SGD(net.parameters(), lr=0.1, momentum=0.9)


def tensor_rate(net: nn.Module) -> Optimizer:
    return AdamW(net.parameters(), lr=torch.tensor(0.03))


class ByWeights(LRScheduler):
    """One that looks at the parameters themselves."""

    def get_lr(self) -> list[float]:
        sizes = [sum(each.numel() for each in group["params"]) for group in self.optimizer.param_groups]
        return [0.001 * size**0.5 / (1 + self.last_epoch) for size in sizes]


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
    "milestones": (sgd, lambda optimizer: torchs.MultiStepLR(optimizer, [3, 9, 9, 20], 0.5)),
    "by the weights": (adamw, ByWeights),
    "a rate in a tensor": (tensor_rate, lambda optimizer: torchs.CosineAnnealingLR(optimizer, STEPS)),
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


class With:
    """A job with an optimizer and a scheduler."""

    def __init__(self, optimizer: Callable[[nn.Module], Any], make: Callable[[Optimizer], Any]) -> None:
        self.optimizer, self.make = optimizer, make

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Any:
        return self.optimizer(model)

    def create_scheduler(self, optimizer: Optimizer, config: TrainingConfig) -> Any:
        return self.make(optimizer)


def schedule_of(kind: str, saved: Any = None) -> Schedule:
    return Schedule(With(*SCHEDULERS[kind]), model(), TrainingConfig(), saved)


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
    other, schedule = make_optimizer(ours), schedule_of(kind)

    def stepped(number: int) -> None:
        set_options(other, decoded(encoded(schedule.options(number))))
        other.step()

    for found, right in zip(train(ours, other, stepped), expected, strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("kind", sorted(SCHEDULERS))
def test_a_schedule_goes_on_from_its_state_and_goes_back(kind: str) -> None:
    whole = schedule_of(kind)
    options = [whole.options(step) for step in range(1, STEPS + 1)]
    assert any(each != options[0] for each in options)
    assert [whole.options(step) for step in (7, 8, 20)] == [options[6], options[7], options[19]], "it went back"
    state = json.loads(json.dumps(whole.state(20)))
    assert (state is None) is (kind == "a rate in a tensor"), "what is no plain data is stepped anew"
    assert whole.state(19) is None, "it is of another step"
    resumed = schedule_of(kind, state)
    assert [resumed.options(step) for step in (21, 22, 29)] == [options[20], options[21], options[28]]
    assert resumed.options(5) == options[4], "before the step of the state"


def test_a_state_saves_the_steps_before_it() -> None:
    asked: list[int] = []

    def make(optimizer: Optimizer) -> LRScheduler:
        return torchs.LambdaLR(optimizer, lambda done: asked.append(done) or 1 / (1 + done))

    first = Schedule(With(sgd, make), model(), TrainingConfig())
    expected = [first.options(step) for step in (100, 101)][1]
    state = first.state(101)
    asked.clear()
    assert Schedule(With(sgd, make), model(), TrainingConfig(), state).options(101) == expected
    assert asked == [0]


def test_the_jobs_optimizer_itself_stays_as_it_is() -> None:
    net = model()
    optimizer = adamw(net)
    before = [dict(group) for group in optimizer.param_groups]
    job = With(lambda _model: optimizer, SCHEDULERS["one cycle, with betas"][1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = Schedule(job, net, TrainingConfig())
        schedule.options(9)
        schedule.options(2)  # makes a new one
    assert [dict(group) for group in optimizer.param_groups] == before
    assert schedule.kind == "AdamW"


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
        Schedule(With(sgd, make), model(), TrainingConfig())


def test_an_option_that_can_not_be_sent_is_refused() -> None:
    class SetsAnObject(LRScheduler):
        def get_lr(self) -> list[float]:
            self.optimizer.param_groups[0]["momentum"] = object()
            return [0.1]

    with pytest.raises(JobError, match="the scheduler sets momentum to a object, which can't be sent"):
        Schedule(With(sgd, SetsAnObject), model(), TrainingConfig()).options(1)


def test_a_scheduler_that_goes_by_the_validation_is_stepped_once_an_evaluation() -> None:
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

    def rates(schedule: Schedule, step: int) -> list[float]:
        options = schedule.options(step, tuple(each for each in watched if each[0] < step)) or ({}, {})
        return [own.get("lr", base) for own, base in zip(options, expected[0], strict=True)]

    schedule = Schedule(With(adamw, make), model(), TrainingConfig())
    assert schedule.plateau == "min"
    states = []
    for step in (*range(1, STEPS + 1), *range(8, STEPS + 1)):  # it goes back once
        assert rates(schedule, step) == expected[step - 1], step
        states.append(json.loads(json.dumps(schedule.state(step))))
    resumed = Schedule(With(adamw, make), model(), TrainingConfig(), states[12])
    assert [rates(resumed, step) for step in range(14, STEPS + 1)] == expected[13:]


def test_a_cycle_that_is_shorter_than_the_run_says_so() -> None:
    job = With(sgd, lambda optimizer: torchs.OneCycleLR(optimizer, 0.5, total_steps=5))
    schedule = Schedule(job, model(), TrainingConfig())
    schedule.options(5)
    with pytest.raises(JobError, match="the scheduler's step: ValueError: Tried to step"):
        schedule.options(7)


class Default:
    """A job without a scheduler."""

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> Optimizer:
        return sgd(model)


def test_a_constant_rate_with_a_warm_up_is_a_schedule() -> None:
    made = Schedule(Default(), model(), TrainingConfig(warmup_steps=3, num_iterations=10))
    assert [made.options(step)[0]["lr"] for step in (1, 3, 4, 9)] == pytest.approx([0.025, 0.075, 0.1, 0.1])
    assert Schedule(Default(), model(), TrainingConfig(schedule="linear", num_iterations=10)).options(2)
    assert Schedule(Default(), model(), TrainingConfig()).options(9) == ()


def test_an_events_rate_is_that_of_the_first_group_and_none_where_the_optimizer_has_none() -> None:
    made = Schedule(Default(), model(), TrainingConfig(warmup_steps=1, num_iterations=10))
    assert [made.rate(made.options(step)) for step in (1, 2, 3)] == pytest.approx([0.05, 0.1, 0.1])
    assert Schedule(Default(), model(), TrainingConfig()).rate(()) == 0.1

    def without(net: nn.Module) -> Optimizer:
        optimizer = sgd(net)
        del optimizer.param_groups[0]["lr"]
        return optimizer

    job = SimpleNamespace(create_optimizer=lambda model, config: without(model))
    assert Schedule(job, model(), TrainingConfig()).rate(()) is None


def test_the_plan_says_that_loaded_state_of_an_optimizer_is_not_taken_over() -> None:
    net = torch.nn.Linear(2, 2)
    before = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    before.step()

    def create_optimizer(model: nn.Module, config: TrainingConfig) -> Optimizer:
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.load_state_dict(before.state_dict())
        return optimizer

    (note,) = Schedule(SimpleNamespace(create_optimizer=create_optimizer), net, TrainingConfig()).notes
    assert "loads state of earlier steps" in note
    fresh = SimpleNamespace(create_optimizer=lambda model, config: torch.optim.Adagrad(model.parameters()))
    assert Schedule(fresh, net, TrainingConfig()).notes == ()
