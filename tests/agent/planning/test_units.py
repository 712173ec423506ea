from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from remote_agent.planning import units

CUTS = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


@given(st.integers(1, 300), st.integers(1, 300))
def test_units_cover_the_batch_are_no_larger_than_asked_and_differ_by_one_sample(samples: int, unit: int) -> None:
    ends = units.bounds(samples, unit)
    sizes = [end - begin for begin, end in pairwise(ends)]
    assert (ends[0], ends[-1]) == (0, samples)
    assert max(sizes) <= unit
    assert max(sizes) - min(sizes) <= 1


@given(CUTS, st.integers(1, 60))
def test_a_cut_in_whole_units_has_the_same_samples_and_ends_where_units_do(cut: list[int], unit: int) -> None:
    total = sum(cut)
    aligned = units.aligned(cut, unit)
    assert sum(aligned) == total
    assert len(aligned) == len(cut)
    ends, place = set(units.bounds(total, unit)), 0
    for samples in aligned:
        place += samples
        assert place in ends


@given(CUTS, st.integers(1, 60))
def test_nobody_is_further_from_its_share_than_a_unit(cut: list[int], unit: int) -> None:
    largest = max(end - begin for begin, end in pairwise(units.bounds(sum(cut), unit)))
    # Units differ by a sample: what came before can shift a device's part by that many.
    slack = len(units.bounds(sum(cut), unit))
    assert all(abs(a - b) <= largest + slack for a, b in zip(cut, units.aligned(cut, unit), strict=True))


def test_an_undivided_batch_goes_to_the_device_with_the_largest_share() -> None:
    assert units.aligned([30, 30, 40], 100) == (0, 0, 100)
    assert units.aligned([60, 40], 1000) == (100, 0)


def test_the_chosen_unit_depends_on_the_batch_alone_and_is_not_too_small() -> None:
    assert units.default_unit(256) == 32
    assert units.default_unit(64, units.LEAST) == 8
    assert units.default_unit(1000, units.LEAST) == 100
    assert units.default_unit(6) == 6
