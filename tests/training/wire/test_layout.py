"""How the buffer is cut, whatever the model and the shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_agent.training.wire.layout import plan_layout

GROUPS = st.lists(st.integers(0, 5000), max_size=5)
WEIGHTS = st.lists(st.floats(0, 10), min_size=1, max_size=5).filter(lambda weights: sum(weights) > 1e-3)


@given(groups=GROUPS, weights=WEIGHTS, size=st.integers(1, 700))
def test_chunks_cover_the_buffer_once_and_never_cross_a_parameter_group(
    groups: list[int], weights: list[float], size: int
) -> None:
    layout = plan_layout(groups, weights, size)
    assert layout.numel == sum(groups)
    borders = [sum(groups[: group + 1]) for group in range(len(groups))]
    position = 0
    for chunk in layout.chunks:
        assert chunk.begin == position
        assert 1 <= chunk.numel <= size
        assert borders[chunk.group] - groups[chunk.group] <= chunk.begin < chunk.end <= borders[chunk.group]
        position = chunk.end
    assert sorted(chunk for chunks in layout.by_shard for chunk in chunks) == list(range(len(layout.chunks)))


@given(weights=WEIGHTS, size=st.integers(1, 200))
def test_a_shard_gets_its_part_to_within_a_chunk_for_each_shard(weights: list[float], size: int) -> None:
    layout = plan_layout([4321], weights, size)
    for shard, weight in enumerate(weights):
        assert abs(layout.shard_numel(shard) - 4321 * weight / sum(weights)) <= size * len(weights)
        if not weight:
            assert not layout.by_shard[shard]


def test_neighbouring_chunks_lie_on_different_shards() -> None:
    layout = plan_layout([10_000], [1, 1, 1], 100)
    assert all(one != next_one for one, next_one in zip(layout.owners, layout.owners[1:], strict=False))


@given(groups=GROUPS, size=st.integers(1, 700), data=st.data())
def test_the_chunks_of_a_range_are_those_that_overlap_it(groups: list[int], size: int, data: st.DataObject) -> None:
    layout = plan_layout(groups, [1, 2], size)
    begin = data.draw(st.integers(0, layout.numel))
    end = data.draw(st.integers(begin, layout.numel))
    expected = [n for n, chunk in enumerate(layout.chunks) if max(begin, chunk.begin) < min(end, chunk.end)]
    assert list(layout.overlapping(begin, end)) == expected


def test_a_relays_workers_know_the_same_chunks_on_one_shard() -> None:
    layout = plan_layout([100, 50], [1, 2, 0], 20)
    assert layout.of_one.chunks == layout.chunks
    assert layout.of_one.by_shard == (tuple(range(len(layout.chunks))),)
    assert layout.of_one.shard_numel(0) == 150


def test_different_cuts_are_told_apart() -> None:
    digests = {
        plan_layout(groups, weights, size).digest
        for groups in ([100], [50, 50])
        for weights in ([1], [1, 1], [1, 2])
        for size in (10, 20)
    }
    assert len(digests) == 12


@pytest.mark.parametrize(("groups", "weights"), [([10], [0.0, 0.0]), ([10], []), ([10], [1.0, -1.0]), ([-1], [1.0])])
def test_a_cut_that_makes_no_sense_is_refused(groups: list[int], weights: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        plan_layout(groups, weights)
