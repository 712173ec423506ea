"""What the shards count of a step whose spans are added up at relays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from remote_agent.training.coordinator.strategies.step_in_flight import peer_of, samples_of, whole_slice
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.shared.messages import Slice, StreamedTask
from remote_agent.training.shared.slices import WHOLE, Part
from tests.training.cuts import cut

ORDER = SampleOrder(7, 100, 10)
SPANS = cut(3, 2, 1, 4, begin=20)


def task(index: int, peers: tuple[str, ...] = ("a", "", "a", "b")) -> StreamedTask:
    span = SPANS[index]
    own = Slice(index=index, indices=ORDER.take(span.begin, span.end), begin=span.begin, first=20, total=10)
    return StreamedTask(step=3, spans=SPANS, own=own, peers=peers)


def test_spans_of_one_relay_are_one_slice_in_parts() -> None:
    assert task(0).slices == 3
    assert [task(index).numbered for index in range(4)] == [(0, Part(0, 2)), (1, WHOLE), (0, Part(1, 2)), (2, WHOLE)]


def test_without_relays_each_span_is_a_slice() -> None:
    assert task(0, ()).slices == 4
    assert [task(index, ()).numbered for index in range(4)] == [(index, WHOLE) for index in range(4)]


@pytest.mark.parametrize("lost", [0, 2])
def test_the_whole_slice_has_all_spans_of_the_relay_with_their_own_numbers(lost: int) -> None:
    whole = whole_slice(task(lost), ORDER)
    assert whole.numbered == (0, WHOLE)
    assert whole.own is not None
    assert [each.index for each in (whole.own, *whole.more)] == [0, 2]
    assert samples_of(whole) == 4
    for each in (whole.own, *whole.more):
        own = task(each.index).own
        assert own is not None
        assert dataclasses.replace(each, indices=own.indices) == own
        assert np.array_equal(each.indices, own.indices)
    assert peer_of(whole) == "a"
