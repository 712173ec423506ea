"""A shard that does not wait, without a network: each slice counts once, with the weight of its samples."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from remote_agent.training.server.slice_log import SliceLog
from remote_agent.training.server.stale_shard import StaleShard
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.wire import codecs
from remote_agent.training.wire.agreement import EXACT, Codecs
from remote_agent.training.wire.errors import ExchangeError, MalformedFrame
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import plan_layout

BATCH = 12


def make(
    weights: Tensor, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, agreed: Codecs = EXACT, **options: float
) -> StaleShard:
    layout = plan_layout([len(weights)], [1.0], 5)
    update = OptimizerUpdate(layout, lambda _group, part: optimizer([part], **options))
    return StaleShard(layout, 0, weights, update, agreed, batch=BATCH)


def contribute(shard: StaleShard, number: int, samples: int, gradient: Tensor, *chunks: int) -> list[bool]:
    """Push a slice's gradient SUM, for all chunks or for some."""
    codec = shard.codecs.gradients
    counted = []
    for chunk in chunks or shard.chunks:
        part = shard.layout.chunks[chunk]
        payload = codec.encode(gradient[part.begin : part.end].clone())
        header = Header(
            Kind.GRADIENT,
            step=number,
            samples=samples,
            chunk=chunk,
            codec=codec.code,
            length=len(payload),
            weight=float(samples),
        )
        assert shard.payload_size(header) == len(payload)
        counted.append(shard.contribute(header, payload, torch.empty(100)))
    return counted


def weights_of(shard: StaleShard) -> Tensor:
    frames = [shard.whole(1, chunk, torch.empty(100)) for chunk in shard.chunks]
    return torch.cat([torch.frombuffer(bytearray(frame.payload), dtype=torch.float32) for frame in frames])


def random(seed: int, numel: int = 17) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


# --- The log ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 30), max_size=60))
def test_the_log_is_the_set_of_what_was_counted(numbers: list[int]) -> None:
    log, model = SliceLog(), set[int]()
    for number in numbers:
        assert log.add(number) is (number not in model)
        model.add(number)
        assert [each in log for each in range(35)] == [each in model for each in range(35)]
        assert log.watermark == next(each for each in range(40) if each + 1 not in model)


@given(st.data())
def test_the_log_is_no_longer_than_the_slices_under_way(data: st.DataObject) -> None:
    log, under_way = SliceLog(), []
    workers = data.draw(st.integers(1, 6))
    for number in range(1, 100):
        under_way.append(number)
        if len(under_way) == workers:
            log.add(under_way.pop(data.draw(st.integers(0, workers - 1))))
        assert len(log) <= workers


# --- Counting --------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=40))
def test_each_chunk_of_a_slice_is_applied_once_however_often_and_in_whatever_order_it_comes(
    pushes: list[tuple[int, int]],
) -> None:
    start = random(0)
    shard = make(start, lr=0.1)
    expected, seen = start.clone(), set()
    for number, chunk in pushes:
        (counted,) = contribute(shard, number, number, random(number), chunk)
        assert counted is ((number, chunk) not in seen)
        if counted:
            part = shard.layout.chunks[chunk]
            expected[part.begin : part.end] -= 0.1 * random(number)[part.begin : part.end] / BATCH
        seen.add((number, chunk))
        assert shard.counted(number) == [(number, each) in seen for each in shard.chunks]
    torch.testing.assert_close(weights_of(shard), expected)
    assert shard.samples() == [sum(number for number, own in seen if own == chunk) for chunk in shard.chunks]


@settings(deadline=None)
@given(st.lists(st.integers(1, BATCH), min_size=1, max_size=6), st.sampled_from([0.0, 0.3]))
def test_with_plain_sgd_the_slices_of_a_batch_move_the_weights_as_far_as_one_step(
    cuts: list[int], decay: float
) -> None:
    samples = [end - begin for begin, end in zip([0, *sorted(set(cuts))], [*sorted(set(cuts)), BATCH], strict=True)]
    samples = [count for count in samples if count]
    start, rate = random(0), 1e-3
    shard = make(start, lr=rate, weight_decay=decay)
    for number, count in enumerate(samples, start=1):
        contribute(shard, number, count, count * random(number))
    mean = sum((count * random(number) for number, count in enumerate(samples, start=1)), torch.zeros(17)) / BATCH
    step = weights_of(shard) - start
    tolerance = 1e-6 if not decay else 2 * (rate * decay) ** 2 * float(start.abs().max()) + 1e-6
    assert float((step + rate * (mean + decay * start)).abs().max()) < tolerance


def test_with_adam_the_slices_of_a_batch_are_together_as_long_as_one_step() -> None:
    start = random(0)
    shard = make(start, torch.optim.Adam, lr=0.01)
    for number in range(1, 5):
        contribute(shard, number, 3, 3 * random(9))
    whole = nn.Parameter(start.clone())
    whole.grad = random(9)
    torch.optim.Adam([whole], lr=0.01).step()
    torch.testing.assert_close(weights_of(shard), whole.detach())


def test_a_schedule_follows_the_samples_that_were_counted_not_the_slices() -> None:
    asked: list[int] = []

    def options(_group: int, step: int) -> Mapping[str, float]:
        asked.append(step)
        return {"lr": 1.0 / step}

    layout = plan_layout([4], [1.0])
    update = OptimizerUpdate(layout, lambda _group, part: torch.optim.SGD([part], lr=5.0), options)
    shard = StaleShard(layout, 0, torch.zeros(4), update, EXACT, batch=BATCH)
    for number in range(1, 7):
        contribute(shard, number, 4, 4 * torch.ones(4))
    assert asked == [1, 1, 1, 2, 2, 2]
    torch.testing.assert_close(weights_of(shard), torch.full((4,), -1.5))


def test_answers_tell_up_to_which_slice_all_are_in_them() -> None:
    shard = make(random(0), lr=0.1)
    contribute(shard, 2, 3, random(2))
    contribute(shard, 1, 3, random(1), 0)
    marks = [shard.answer(2, chunk, torch.empty(100)).header for chunk in shard.chunks]
    assert [(mark.step, mark.slice) for mark in marks] == [(2, 2), (2, 0), (2, 0), (2, 0)]


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_rounded_weights_do_not_add_up_on_the_shard(name: str) -> None:
    agreed = Codecs(codecs.create(name), codecs.create("bf16"))
    start = random(0)
    shard, exact = make(start, agreed=agreed, lr=0.01), start.clone()
    for number in range(1, 200):
        contribute(shard, number, 3, torch.full((17,), 3e-3))
        exact -= 0.01 * 1e-3 * 3 / BATCH
    error = (weights_of(shard) - exact).abs().max()
    assert error < 1e-5, "a bfloat16 weight of 1 would not have moved at all"
    (frame,) = [shard.answer(1, chunk, torch.empty(100)) for chunk in shard.chunks[:1]]
    assert frame.header.length == 2 * shard.layout.chunks[0].numel


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "samples"), [(0, 3), (1, 0), (1, BATCH + 1)])
def test_what_is_not_a_slice_is_refused_and_changes_nothing(number: int, samples: int) -> None:
    shard = make(random(0), lr=0.1)
    with pytest.raises(MalformedFrame):
        contribute(shard, number, samples, random(1))
    assert torch.equal(weights_of(shard), random(0))


def test_weights_cannot_travel_in_a_codec_for_differences() -> None:
    with pytest.raises(ValueError, match="int8"):
        make(random(0), agreed=Codecs(codecs.create("int8"), codecs.create("int8")), lr=0.1)


def test_an_optimizer_that_fails_is_named_with_its_reason() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            raise RuntimeError("no such state")

    with pytest.raises(ExchangeError, match="no such state"):
        contribute(make(random(0), Failing, lr=0.1), 1, 3, random(1))
