"""A worker's part in an all-reduce: each slice counts once however often a reduction breaks, and copies stay alike."""

from __future__ import annotations

import copy
import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import LossNotFinite
from remote_agent.training.shared import flat
from remote_agent.training.shared.average import WeightAverage
from remote_agent.training.shared.messages import Broken, Failed, GroupMembership, Reduced, ReductionTask, Slice
from remote_agent.training.worker.device.compute import SliceLoss
from remote_agent.training.worker.engine import Parts
from remote_agent.training.worker.reduction import ALIGN_EVERY, Reduction
from remote_agent.training.worker.rendezvous import Rendezvous

ADDRESS, WAIT_S, WORKERS = "127.0.0.1", 30.0, 3

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Model(nn.Module):
    """With a parameter that only some samples give a gradient, batch normalisation, and perhaps other dtypes."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        # In double precision: batch normalisation of two samples magnifies what is rounded.
        self.first, self.norm = nn.Linear(6, 5).double(), nn.BatchNorm1d(5).double()
        self.rare = nn.Parameter(torch.ones(5, dtype=torch.float64))
        self.scale = nn.Parameter(torch.ones(5, dtype=dtype))

    def forward(self, rows: np.ndarray) -> torch.Tensor:
        x = self.norm(self.first(X[torch.from_numpy(rows)]))
        if 0 in rows:
            x = x * self.rare
        y = (x * self.scale).sum(1)
        return (y.real if y.is_complex() else y).pow(2).mean()


Made = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)


class Worker:
    """A model and its part in the reductions."""

    def __init__(self, model: Model, done: int = 0, made: Made = sgd) -> None:
        self.model = copy.deepcopy(model)
        names = tuple(sorted(name for name, _ in self.model.named_buffers()))
        weights = flat.FlatTensors(self.model)
        self.computed: list[tuple[int, int]] = []
        optimizer = made(self.model)
        first = flat.gather(flat.buffers(self.model, names))
        parts = Parts(
            model=self.model, weights=weights, compute=self, factory=None, config=TrainingConfig(), buffers=names
        )
        average = WeightAverage(0.0)
        self.reduction = Reduction(parts, optimizer, first=first, done=done, address=ADDRESS, average=average)

    def __call__(self, step: int, own: Slice) -> SliceLoss:
        self.computed.append((step, own.index))
        self.model.zero_grad()
        loss = self.model(own.indices)
        (loss * len(own.indices)).backward()
        if not loss.isfinite():
            raise LossNotFinite("the loss is nan")
        return SliceLoss(float(loss.detach()), float(len(own.indices)))

    def state(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [call.result(WAIT_S) for call in [pool.submit(call) for call in calls]]


def reduce(
    workers: Mapping[int, Worker], places: Mapping[int, GroupMembership], step: int, n: int, parts: tuple[Slice, ...]
) -> Callable[[], Any]:
    """Worker `n`'s part in a step, to be called."""
    task = ReductionTask(step=step, committed=step - 1, slices=parts, group=places[n])
    return lambda: workers[n].reduction.step(task)


def plain(model: Model, cuts: Sequence[Sequence[np.ndarray]], made: Made = sgd) -> dict[str, torch.Tensor]:
    """The same steps in one loop: each slice with its own statistics, their mean is kept."""
    model = copy.deepcopy(model)
    optimizer = made(model)
    for slices in cuts:
        model.zero_grad()
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        total = sum(len(rows) for rows in slices)
        means = {name: torch.zeros_like(buffer, dtype=torch.float64) for name, buffer in before.items()}
        for rows in slices:
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
            (model(rows) * (len(rows) / total)).backward()
            for name, buffer in model.named_buffers():
                means[name] += buffer.double() * len(rows) / total
        for name, buffer in model.named_buffers():
            buffer.copy_(means[name] if buffer.is_floating_point() else means[name].round())
        optimizer.step()
    return model.state_dict()


def assert_alike(states: Sequence[dict[str, torch.Tensor]], expected: dict[str, torch.Tensor]) -> None:
    for state in states:
        for name, value in expected.items():
            assert torch.equal(state[name], states[0][name]), name
            difference = (state[name] - value).abs().max()
            assert difference <= 1e-5 * value.abs().max().clamp_min(1.0), f"{name}: {difference}"


SIZES = st.lists(st.sampled_from([0, 2, 3, 7]), min_size=WORKERS, max_size=WORKERS).filter(any)
LOSS = st.tuples(st.integers(1, 3), st.integers(0, WORKERS - 1), st.booleans())


@settings(max_examples=15, deadline=None)
@example(sizes=[[7, 3, 2], [2, 3, 7], [3, 3, 3]], loss=(2, 1, False), hosts="abc")
@example(sizes=[[7, 3, 2], [2, 3, 7], [3, 3, 3]], loss=(2, 0, True), hosts="abc")
@example(sizes=[[7, 3, 2], [2, 3, 7], [3, 3, 3]], loss=(2, 0, False), hosts="aab")
@example(sizes=[[7, 3, 2], [2, 3, 7], [3, 3, 3]], loss=(2, 2, True), hosts="abb")
@given(
    sizes=st.lists(SIZES, min_size=3, max_size=3),
    loss=st.none() | LOSS,
    hosts=st.sampled_from(["abc", "aaa", "aab", "aba", "abb"]),
)
def test_every_slice_counts_once_whoever_is_lost_before_or_after_a_reduction(
    sizes: list[list[int]], loss: tuple[int, int, bool] | None, hosts: str
) -> None:
    """`loss` is the step, who is lost in it, and whether the reduction was whole for those who live."""
    model, meeting = Model(), Rendezvous(ADDRESS)
    workers = dict(enumerate(Worker(model) for _ in range(WORKERS)))
    places: dict[int, GroupMembership] = dict(zip(workers, meeting.invite(hosts), strict=True))
    cuts: list[list[np.ndarray]] = []
    for step, counts in enumerate(sizes, start=1):
        bounds = np.cumsum([0, *counts])
        rows = [(np.arange(bounds[n], bounds[n + 1]) + 5 * step) % len(X) for n in range(WORKERS)]
        owned = {
            n: tuple([Slice(index=n, indices=rows[n], total=sum(counts))] if counts[n] else []) for n in range(WORKERS)
        }
        cuts.append([part for part in rows if len(part)])
        if len(workers) < WORKERS:  # its share goes to one of the others
            (gone,) = set(range(WORKERS)) - workers.keys()
            owned[min(workers)] += owned.pop(gone)

        if loss is not None and loss[0] == step:
            _, gone, late = loss
            if late:  # the others have the sums already, but the coordinator has not heard so
                at_once([reduce(workers, places, step, n, owned[n]) for n in workers])
            else:
                lost = places[gone]
                calls = [reduce(workers, places, step, n, owned[n]) for n in workers if n != gone]
                with ThreadPoolExecutor(WORKERS) as pool:
                    answers = [pool.submit(call) for call in calls]
                    meeting.give_up(lost)
                    for n in workers:
                        workers[n].reduction.give_up(lost.number)
                    assert all(isinstance(answer.result(WAIT_S), Broken) for answer in answers)
            del workers[gone]
            places = dict(zip(workers, meeting.invite([hosts[n] for n in workers]), strict=True))
            # What was computed is not asked for again; and if it is, it is not computed again.
            again = {n: owned[n] for n in workers} if late else {}
            again[min(workers)] = again.get(min(workers), ()) + owned[gone]
            answers = at_once([reduce(workers, places, step, n, again.get(n, ())) for n in workers])
        else:
            answers = at_once([reduce(workers, places, step, n, owned[n]) for n in workers])
        for answer in answers:
            assert isinstance(answer, Reduced)
            assert answer.samples == sum(counts)
    for worker in workers.values():
        worker.reduction.commit(len(sizes))
        worker.reduction.commit(len(sizes))  # the same word twice changes nothing
        assert len(worker.computed) == len(set(worker.computed)), "nothing is computed twice"
    assert_alike([worker.state() for worker in workers.values()], plain(model, cuts))


def test_slices_that_are_added_in_their_order_give_the_same_bits_whoever_computes_them() -> None:
    model = Model(torch.float32)
    parts = [Slice(index=n, indices=np.arange(7) + 9 * n, total=42) for n in range(6)]

    def trained(owners: str, ordered: int, hosts: str = "abc") -> dict[str, torch.Tensor]:
        names, meeting = sorted(set(owners)), Rendezvous(ADDRESS)
        workers = {number: Worker(model) for number in range(len(names))}
        places = meeting.invite(hosts[: len(names)]) if len(names) > 1 else (None,)
        for step in (1, 2):
            calls = []
            for number, worker in workers.items():
                own = tuple(part for part, owner in zip(parts, owners, strict=True) if owner == names[number])
                task = ReductionTask(step=step, committed=step - 1, slices=own, group=places[number], ordered=ordered)
                calls.append(functools.partial(worker.reduction.step, task))
            assert all(answer.samples == 42 for answer in at_once(calls))
        for worker in workers.values():
            worker.reduction.commit(2)
        return workers[0].state()

    alone = trained("aaaaaa", 6)
    for owners, hosts in (("abcabc", "abc"), ("aabbbb", "aab"), ("cbacba", "aab"), ("cbacba", "aba")):
        assert all(torch.equal(value, alone[name]) for name, value in trained(owners, 6, hosts).items()), owners
    in_any_order = [trained(owners, 0) for owners in ("aaaaaa", "abcabc", "aabbbb", "cbacba")]
    differ = [name for each in in_any_order for name, value in each.items() if not torch.equal(value, alone[name])]
    assert differ, "rounding shows nothing here"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_parameters_of_other_dtypes_are_reduced_as_exactly_as_they_can_be(dtype: torch.dtype) -> None:
    model, meeting = Model(dtype), Rendezvous(ADDRESS)
    workers, places = [Worker(model), Worker(model)], meeting.invite("ab")
    rows = [np.arange(4), np.arange(10, 16)]
    owned = [(Slice(index=n, indices=rows[n], total=10),) for n in range(2)]
    at_once([reduce(dict(enumerate(workers)), dict(enumerate(places)), 1, n, owned[n]) for n in range(2)])
    for worker in workers:
        worker.reduction.commit(1)
    expected = plain(model, [rows])
    coarse = torch.finfo(dtype).eps if dtype == torch.bfloat16 else 1e-5
    for worker in workers:
        assert torch.equal(worker.model.scale, workers[0].model.scale)
        assert (worker.model.scale - expected["scale"]).abs().max() <= coarse
        assert not torch.equal(worker.model.scale, model.scale)


@pytest.mark.parametrize("hosts", ["abc", "abb"])
def test_copies_that_drifted_apart_by_rounding_are_brought_together_again(hosts: str) -> None:
    model, meeting = Model(), Rendezvous(ADDRESS)
    workers = [Worker(model, done=ALIGN_EVERY - 2) for _ in hosts]
    places = meeting.invite(hosts)
    with torch.no_grad():
        for worker in workers[1:]:
            worker.model.first.weight.mul_(1 + 1e-12)
    owned = [(Slice(index=n, indices=np.arange(8) + 8 * n, total=24),) for n in range(3)]
    for step in (ALIGN_EVERY - 1, ALIGN_EVERY):
        at_once([reduce(dict(enumerate(workers)), dict(enumerate(places)), step, n, owned[n]) for n in range(3)])
        for worker in workers[1:]:
            alike = torch.equal(workers[0].model.first.weight, worker.model.first.weight)
            assert alike is (step == ALIGN_EVERY)


def test_a_loss_that_is_not_finite_is_told_before_anything_is_reduced() -> None:
    worker = Worker(Model())
    with torch.no_grad():
        worker.model.first.bias.fill_(float("nan"))
    (place, _) = Rendezvous(ADDRESS).invite("ab")
    task = ReductionTask(step=1, committed=0, slices=(Slice.whole(np.arange(4)),), group=place)
    answer = worker.reduction.step(task)
    assert isinstance(answer, Failed)
    assert "nan" in answer.cause


def test_an_optimizers_step_draws_the_same_on_each_worker_without_a_stack_being_formatted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``torch.manual_seed`` formats it in each step, for accelerators that are not there: about 0.1 ms."""
    drawn = list[Any]()
    for _ in range(2):
        worker = Worker(Model())
        optimizer = worker.reduction._optimizer
        optimizer.register_step_pre_hook(lambda *_: drawn.append((float(torch.rand(())), np.random.rand())))
        worker.reduction.step(ReductionTask(step=1, committed=0, slices=(Slice.whole(np.arange(4)),), group=None))
        with monkeypatch.context() as without:
            without.setattr(traceback, "format_stack", lambda *_: pytest.fail("a stack is formatted"))
            worker.reduction.commit(1)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("apart", [1e-6, 0.2], ids=["rounding", "something of its own"])
def test_steps_that_each_worker_makes_by_something_of_its_own_end_the_run(apart: float) -> None:
    """As from activations that a hook keeps: gradients are scaled on one worker alone, from the second step on."""
    model, meeting = Model(torch.float32), Rendezvous(ADDRESS)
    workers = dict(enumerate(Worker(model) for _ in range(WORKERS)))
    places: dict[int, GroupMembership] = dict(zip(workers, meeting.invite("abc"), strict=True))
    steps = [0]

    def scaled(optimizer: torch.optim.Optimizer, *unused: object) -> None:
        steps[0] += 1
        if steps[0] > 1:
            for parameter in optimizer.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(1 + apart)

    workers[1].reduction._optimizer.register_step_pre_hook(scaled)
    for step in range(1, 4):
        rows = [np.arange(7) + 9 * n + step for n in range(WORKERS)]
        parts = [(Slice(index=n, indices=rows[n], total=21),) for n in workers]
        answers = at_once([reduce(workers, places, step, n, parts[n]) for n in workers])
    kinds = {type(answer) for answer in answers}
    if apart < 1e-3:
        assert kinds == {Reduced}
    else:
        assert kinds == {Failed}
        assert "step 2: the optimizer's step made other weights on each worker" in answers[0].cause


class Keeping(torch.optim.Optimizer):
    """Keeps gradients until the next step, as they are or a view of them, and puts weights into new memory."""

    def __init__(self, parameters: Any, *, views: bool) -> None:
        super().__init__(parameters, {})
        self.views = views

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                last = self.state[parameter].get("last", parameter.grad)
                parameter.data = parameter.data - 0.05 * (1.5 * parameter.grad - 0.5 * last.view_as(parameter))
                self.state[parameter]["last"] = parameter.grad.data.view(-1) if self.views else parameter.grad


@pytest.mark.parametrize("views", [False, True])
def test_an_optimizer_may_keep_gradients_and_put_weights_elsewhere(views: bool) -> None:
    def made(model: nn.Module) -> torch.optim.Optimizer:
        return Keeping(model.parameters(), views=views)

    model, cuts = Model(torch.float32), [[np.arange(7) + 9 * step] for step in range(5)]
    worker = Worker(model, made=made)
    for step, (rows,) in enumerate(cuts, start=1):
        task = ReductionTask(step=step, committed=step - 1, slices=(Slice(index=0, indices=rows, total=7),), group=None)
        assert isinstance(worker.reduction.step(task), Reduced)
    worker.reduction.commit(len(cuts))
    assert_alike([worker.state()], plain(model, cuts, made))
    weights = [flat.to_bytes(each) for each in flat.FlatTensors(worker.model).flats]
    assert all(map(np.array_equal, weights, worker.reduction.payload()))
