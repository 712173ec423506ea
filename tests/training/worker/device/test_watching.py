"""A loss that turns out in the run to depend on which samples are together ends it; nothing else does."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError
from remote_agent.training.shared.messages import Slice
from remote_agent.training.worker.device.additivity import Additivity
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.watching import EVERY, FIRST, LossWatch, is_due

SAMPLES, PADDED = 60, 40
"""From sample 40 on some positions are padded."""

MASK = torch.ones(SAMPLES, 4)
MASK[PADDED::2, 2:] = 0


def data() -> Any:
    generator = torch.Generator().manual_seed(3)
    return datasets.as_dataset((torch.randn(SAMPLES, 6, generator=generator), MASK))


def net(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 4)).train()


def masked(model: nn.Module, batch: Any) -> Tensor:
    each = model(batch[0]).square() * batch[1]
    return each.sum() / batch[1].sum()


def watched(loss: Callable[..., Any], model: nn.Module, *, summed: bool = False, owner: object = None) -> SliceComputer:
    """As it is after a measurement with the samples that are not padded."""
    computer = SliceComputer(model, loss, data(), torch.device("cpu"), seed=0)
    measured = Additivity(model, computer, owner, np.arange(PADDED), {})
    assert not measured.check().together
    assert measured.evaluating is not None
    computer.summed = summed
    computer.watch = LossWatch(
        model, evaluating=measured.evaluating, tolerance=measured.tolerance, scale=measured.scale, owner=owner
    )
    return computer


def own(begin: int, count: int = 10) -> Slice:
    return Slice(index=0, indices=np.arange(begin, begin + count), total=2 * count, begin=begin)


def test_all_of_the_first_slices_are_looked_at_and_later_ones_now_and_then() -> None:
    due = [number for number in range(1, 1001) if is_due(number)]
    assert due[:FIRST] == list(range(1, FIRST + 1))
    assert due[FIRST : FIRST + 2] == [16, 32]
    assert 1000 / EVERY <= len(due) <= 1000 / EVERY + FIRST + 10


def test_a_small_difference_is_told_once() -> None:
    def solved(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0])
        return out.square().mean() + (0 if batch[1].all() else 2e-5 * out.std(0).mean())

    computer = watched(solved, net())
    notices = []
    for step in range(1, FIRST + 1):
        computer(step, own(5 * step + 5))
        assert computer.watch is not None
        notices.append(computer.watch.take_notice())
    told = [each for each in notices if each]
    assert len(told) == 1
    assert "more than rounding" in told[0]
    assert not any(notices[:5])  # none of these is padded


def test_a_run_that_goes_on_is_not_looked_at_as_a_new_one() -> None:
    seen = []
    for made in (0, 20):
        computer = watched(masked, net())
        assert computer.watch is not None
        computer.watch.after(made)
        probed: list[int] = []
        computer.probe = lambda *given, probed=probed: probed.append(1) or 1 / 0  # type: ignore[method-assign]
        for step in range(made + 1, made + 7):
            computer(step, own(0))
        seen.append(len(probed))
    assert seen == [1, 0]


@pytest.mark.parametrize("middle", [[], [nn.Dropout(0.3)]])
def test_padding_that_the_measurement_did_not_see_ends_the_run(middle: list[nn.Module]) -> None:
    computer = watched(masked, net(*middle))
    for step in range(1, 4):
        computer(step, own(10 * step))
    with pytest.raises(
        JobError, match=r"step 4: the loss of 10 samples \(40, 41, 42 \.\.\.\) is .* halves' losses"
    ) as told:
        computer(4, own(PADDED))
    assert "may not be what plain torch trains" in told.value.hint


@pytest.mark.parametrize("middle", [[], [nn.Dropout(0.3)], [nn.BatchNorm1d(8), nn.Dropout(0.3)]])
def test_a_mean_over_samples_goes_on_and_nothing_of_it_shows(middle: list[nn.Module]) -> None:
    def squared(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).square().mean()

    models = net(*copy.deepcopy(middle)), net(*copy.deepcopy(middle))
    with_watch, without = (watched(squared, model) for model in models)
    without.watch = None
    for step in range(1, 20):
        loss, expected = (each(step, own(step % 5 * 10)) for each in (with_watch, without))
        assert (loss.loss, loss.weight) == (expected.loss, expected.weight)
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
    for ours, theirs in zip(models[0].buffers(), models[1].buffers(), strict=True):
        assert torch.equal(ours, theirs)


class Changing:
    """A loss with state of its own, which shows from call number ``at`` on."""

    def __init__(self, kind: str) -> None:
        self.kind, self.calls, self.at = kind, 0, 1_000_000
        self.own = torch.Generator().manual_seed(1)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls += 1
        factor = 1.0
        if self.calls >= self.at:
            noise = 0.3 * float(torch.rand((), generator=self.own))
            factor = {"switch": 0.5, "counter": 1 + 0.001 * self.calls, "generator": 1 + noise}[self.kind]
        return model(batch[0]).square().mean() * factor


@pytest.mark.parametrize("kind", ["switch", "counter", "generator"])
def test_state_outside_of_the_model_is_told_once_and_does_not_end_the_run(kind: str) -> None:
    loss = Changing(kind)
    computer = watched(loss, net())
    loss.at = loss.calls + 3  # training, the whole, and then its first half
    told = []
    for step in range(1, 9):
        computer(step, own(step % 4 * 10))
        assert computer.watch is not None
        told.append(computer.watch.take_notice())
    assert "something outside of the model's state changes it" in told[0]
    assert ("not checked here any more" in told[0]) is (kind != "switch")
    assert not any(told[1:])


def test_dropout_that_begins_later_does_not_end_the_watch() -> None:
    dropout = nn.Dropout(0.0)
    computer = watched(masked, net(dropout))
    dropout.p = 0.3
    for step in range(1, 4):
        computer(step, own(step % 4 * 10))
    with pytest.raises(JobError, match="halves' losses"):
        computer(4, own(PADDED))


def test_that_a_loss_can_not_be_looked_at_any_more_is_told() -> None:
    calls = itertools.count(1)

    def once(model: nn.Module, batch: Any) -> Tensor:
        if next(calls) > 30 and not model.training:
            raise ValueError("no targets")
        return model(batch[0]).square().mean()

    computer = watched(once, net(nn.Dropout(0.3)))
    calls = itertools.count(31)
    computer(1, own(0))
    assert computer.watch is not None
    assert "can't be computed a second time (ValueError: no targets); whether" in computer.watch.take_notice()
    computer(2, own(0))
    assert not computer.watch.take_notice()


def test_weights_that_the_code_begins_to_change_later_end_the_run() -> None:
    begun: list[bool] = []

    def clipping(model: nn.Module, batch: Any) -> Tensor:
        if begun:
            with torch.no_grad():
                model.get_parameter("0.weight").clamp_(-0.1, 0.1)
        return model(batch[0]).square().mean()

    computer = watched(clipping, net())
    computer(1, own(0))
    begun.append(True)
    with pytest.raises(JobError, match=r"step 2: forward or loss itself changes the trained parameter 0\.weight"):
        computer(2, own(10))


class Teaching:
    """A job with a teacher outside of the model, which ``follows`` it at some time, and the last loss for a log."""

    def __init__(self, model: nn.Module) -> None:
        self.teacher, self.follows, self.last = copy.deepcopy(model), False, 0.0

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self.follows:
            with torch.no_grad():
                for mine, its in zip(self.teacher.parameters(), model.parameters(), strict=True):
                    mine.lerp_(its, 0.1)
        loss = (model(batch[0]) - self.teacher(batch[0]).detach()).square().mean()
        self.last = loss.item()
        return loss


def test_state_of_the_job_that_its_code_begins_to_change_ends_the_run() -> None:
    model = net()
    job = Teaching(model)
    computer = watched(job.loss, model, owner=job)
    with torch.no_grad():
        model.get_parameter("0.weight").add_(0.1)
    computer(1, own(0))
    job.follows = True
    with pytest.raises(JobError, match=r"step 2: self\.teacher\.0\.weight changes with every call of loss"):
        computer(2, own(10))


class Remembers(nn.Module):
    """Has state, which begins to change in the fourth batch."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.change = net(), change
        self.register_buffer("held", torch.zeros(16, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        self.calls += 1
        if self.calls > 3:
            with torch.no_grad():
                self.held.copy_(self.change(self.held, found))
        return found


def pushed(held: Tensor, new: Tensor) -> Tensor:
    return torch.cat([new, held])[: len(held)]


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        (pushed, True),
        (lambda held, new: held.lerp(new.square().mean().sqrt(), 0.1), True),
        (lambda held, new: held.lerp(new.mean(0), 0.1), False),
        (lambda held, new: held + torch.rand(()), False),
    ],
    ids=["queue", "root of the mean", "mean", "random"],
)
def test_state_that_is_no_mean_over_parts_ends_the_run_also_where_it_begins_to_change_later(
    change: Callable[[Tensor, Tensor], Tensor], ends: bool
) -> None:
    model = Remembers(change)
    computer = SliceComputer(
        model, lambda model, batch: model(batch[0]).square().mean(), data(), torch.device("cpu"), seed=0
    )
    computer.changing = ("held", "calls")
    computer.watch = LossWatch(model, evaluating=False, tolerance=1e-5, scale=1.0)
    for step in range(1, 3):
        computer(step, own(10 * (step - 1)))
    if not ends:
        computer(3, own(20))
        computer(4, own(30))
        return
    with pytest.raises(JobError, match="step 3: held is not trained") as told:  # what the next call makes of it
        computer(3, own(20))
    assert "may not be what plain torch trains" in told.value.hint
