"""The exchange computes what a plain torch loop computes, however the work is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from remote_agent.settings import CODECS
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.shared.optimizer_options import encoded
from remote_agent.training.wire.errors import ExchangeError
from remote_agent.training.wire.layout import Layout, plan_layout
from tests.training.wire.conftest import push_pull

Optimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
NUMBERS, STEPS = 5000, 6
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01),
}
SLICES = {"one": (7,), "unequal": (5, 1, 10), "one empty": (4, 0, 3)}


def cut() -> Layout:
    """Two parameter groups and three unequal shards, in many small chunks."""
    return plan_layout([3000, 2000], [2, 1, 1], 300)


def start() -> Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))


def gradient(step: int, index: int, samples: int) -> Tensor:
    """A gradient sum over `samples` samples."""
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(100 * step + index)) * samples


def plain(make: Optimizer, sizes: Sequence[int], steps: int = STEPS, most_norm: float | None = None) -> Tensor:
    """The same steps in one place."""
    parameter = nn.Parameter(start())
    optimizer = make([parameter])
    for step in range(1, steps + 1):
        total = sum((gradient(step, index, size) for index, size in enumerate(sizes)), torch.zeros(NUMBERS))
        parameter.grad = total / sum(sizes)
        if most_norm is not None:
            nn.utils.clip_grad_norm_([parameter], most_norm)
        optimizer.step()
    return parameter.detach()


def train(member, worker: int, sizes: Sequence[int], steps: int = STEPS) -> None:
    """One worker's part: its slice of each step; an empty slice is sent all the same."""
    for step in range(1, steps + 1):
        member.step(step, [(worker, gradient(step, worker, sizes[worker]))], len(sizes), sum(sizes))


@pytest.mark.parametrize("sizes", SLICES.values(), ids=SLICES.keys())
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_weights_are_those_of_a_plain_loop(fleet, together, make: Optimizer, sizes: Sequence[int]) -> None:
    shards = fleet(cut(), start(), make)
    members = [shards.join() for _ in sizes]
    together(*(partial(train, member, worker, sizes) for worker, member in enumerate(members)))
    for member in members:
        assert torch.allclose(member.weights, plain(make, sizes), rtol=1e-5, atol=1e-6)
        assert torch.equal(member.weights, members[0].weights)


def test_a_worker_without_a_slice_gets_the_weights_all_the_same(fleet, together) -> None:
    shards = fleet(cut(), start(), OPTIMIZERS["AdamW"])
    working, listening = shards.join(), shards.join()

    def listen() -> None:
        for step in range(1, STEPS + 1):
            listening.step(step, [], 1, 7)

    together(partial(train, working, 0, (7,)), listen)
    assert torch.equal(listening.weights, working.weights)


@pytest.mark.parametrize("weights", [(2, 1, 1), (1,)], ids=["three shards", "one shard"])
@pytest.mark.parametrize("most_norm", [0.5, 1e6], ids=["clipped", "within the limit"])
def test_clipping_is_by_the_norm_of_the_whole_gradient(
    fleet, together, most_norm: float, weights: Sequence[float]
) -> None:
    make, sizes = OPTIMIZERS["SGD with momentum"], SLICES["unequal"]
    shards = fleet(plan_layout([3000, 2000], weights, 300), start(), make, most_norm=most_norm)
    members = [shards.join() for _ in sizes]
    together(*(partial(train, member, worker, sizes) for worker, member in enumerate(members)))
    expected = plain(make, sizes, most_norm=most_norm)
    assert torch.allclose(members[0].weights, expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(expected, plain(make, sizes), rtol=1e-5) == (most_norm > 1)


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_with_a_lossy_codec_all_workers_hold_the_same_bits_and_stay_near_the_plain_loop(
    fleet, together, codec: str
) -> None:
    make, sizes, steps = partial(torch.optim.SGD, lr=0.01), SLICES["unequal"], 40
    shards = fleet(cut(), start(), make, codec)
    members = [shards.join() for _ in sizes]
    together(*(partial(train, member, worker, sizes, steps) for worker, member in enumerate(members)))
    joined = shards.join()
    for member in members:
        assert torch.equal(member.weights, joined.weights)
    exact = plain(make, sizes, steps)
    error = (joined.weights - exact).norm() / (exact - start()).norm()
    assert 0 < error < {"bf16": 0.01, "int8": 0.02}[codec]


def test_a_gradient_may_be_offered_in_any_order_as_it_becomes_ready(fleet) -> None:
    make = OPTIMIZERS["AdamW"]
    member = fleet(cut(), start(), make).join()
    exchanging = member.client.begin(1, 1, 7, member.weights, member.new)
    values = gradient(1, 0, 7)
    late = torch.full_like(values, float("nan"))
    contribution = exchanging.contribute(0, late)
    for begin in reversed(range(0, NUMBERS, 170)):
        end = min(begin + 170, NUMBERS)
        late[begin:end] = values[begin:end]
        contribution.offer(begin, end)
    timings = exchanging.finish(20)
    assert torch.allclose(member.new, plain(make, (7,), 1), rtol=1e-5, atol=1e-6)
    assert timings.bytes_out >= 4 * NUMBERS
    assert timings.bytes_in >= 4 * NUMBERS
    with pytest.raises(ValueError, match="twice"):
        contribution.offer(0, 1)


def test_old_weights_stay_as_they_are_until_the_step_is_whole(fleet) -> None:
    member = fleet(cut(), start(), OPTIMIZERS["AdamW"]).join()
    push_pull(member.client, 1, 0, 1, 7, gradient(1, 0, 7), member.weights, member.new)
    assert torch.equal(member.weights, start())
    assert not torch.equal(member.new, start())


def test_a_gradient_that_is_not_finite_is_seen_in_the_weights(fleet) -> None:
    for codec in CODECS:
        member = fleet(cut(), start(), OPTIMIZERS["AdamW"], codec).join()
        values = gradient(1, 0, 7)
        values[1234] = float("inf")
        member.step(1, [(0, values)], 1, 7)
        assert not torch.isfinite(member.weights[1234]), codec


def test_a_schedule_of_learning_rates_reaches_each_parameter_group() -> None:
    layout = plan_layout([3, 2], [1], 2)
    update = OptimizerUpdate(layout, lambda _group, parameter: torch.optim.SGD([parameter], lr=1.0))
    options = encoded(({"lr": 3.0}, {"lr": 13.0}))
    weights = torch.zeros(5)
    for number, chunk in enumerate(layout.chunks):
        update.bind(number, weights[chunk.begin : chunk.end])
        update.apply(number, torch.ones(chunk.numel), options)
    assert weights.tolist() == [-3, -3, -3, -13, -13]


def test_steps_must_follow_one_another(fleet) -> None:
    member = fleet(cut(), start(), OPTIMIZERS["AdamW"]).join()
    with pytest.raises(ExchangeError, match="step 2 can't begin"):
        member.client.begin(2, 1, 7, member.weights, member.new)
    with pytest.raises(ValueError, match="buffer of their own"):
        member.client.begin(1, 1, 7, member.weights, member.weights)
