"""Bars of one line."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hetero_tui.ui.draw.bars import averages, blocks, cells_of, stacked_bar, use_bar
from hetero_tui.ui.palette import DARK

parts = st.lists(st.floats(0, 1e4), min_size=4, max_size=4)


def test_a_use_bar_is_filled_to_half_a_cell() -> None:
    assert use_bar(0.5, 10, DARK).plain == "━━━━━─────"
    assert use_bar(0.55, 10, DARK).plain == "━━━━━╸────"
    assert use_bar(1.7, 4, DARK).plain == "━━━━"
    assert use_bar(None, 4, DARK).plain == "    "


@given(parts, st.integers(0, 200))
def test_parts_add_up_to_the_bar_and_none_is_off_by_a_whole_cell(values, width) -> None:
    cells = cells_of(values, width)
    total = math.fsum(values)
    assert sum(cells) == (width if total > 0 else 0)
    for value, count in zip(values, cells, strict=True):
        assert total == 0 or abs(value / total * width - count) < 1 + 1e-6


@given(parts, st.integers(1, 120))
def test_a_stacked_bar_always_has_its_width(values, width) -> None:
    assert stacked_bar(values, sum(values), width, DARK).cell_len == width


def test_a_stacked_bar_has_a_glyph_for_each_part_in_order_and_blanks_for_the_rest() -> None:
    assert stacked_bar((4, 2, 1, 1), 16, 16, DARK).plain == "████▓▓▒·        "


def test_blocks_go_from_the_lowest_to_the_highest() -> None:
    assert blocks([8, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"
    assert blocks([3, 3], 8) == "▁▁"
    assert blocks([], 8) == blocks([1], 0) == ""


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.data())
def test_averages_lie_between_the_extremes(values, data) -> None:
    count = data.draw(st.integers(1, len(values)))
    means = averages(values, count)
    assert len(means) == count
    assert min(values) - 1e-6 <= min(means) <= max(means) <= max(values) + 1e-6
