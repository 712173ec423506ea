"""The curve in braille."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_tui.state import Marker
from hetero_tui.ui.draw.curve import curve, loss_blocks
from hetero_tui.ui.palette import DARK


def plain(points, markers=(), width=30, height=8) -> list[str]:
    return [line.plain for line in curve(points, markers, width, height, DARK)]


def test_a_falling_loss_goes_from_the_upper_left_to_the_lower_right() -> None:
    lines = plain([(step, 10.0 - step) for step in range(1, 10)])
    marks = [[index for index, char in enumerate(line) if "\u2800" < char <= "\u28ff"] for line in lines[:-1]]
    assert all(above[-1] <= below[0] + 1 for above, below in pairwise(marks))
    assert lines[0].startswith("9.000 ")
    assert lines[-2].startswith("1.000 ")
    assert lines[-1].split() == ["1", "step", "9"]


def test_neighbouring_points_are_joined_without_a_gap() -> None:
    lines = plain([(1, 10.0), (2, 0.0)])
    assert all(any("\u2800" < char <= "\u28ff" for char in line) for line in lines[:-1])


def test_a_fault_is_marked_at_its_step_with_its_words() -> None:
    points = [(step, 5.0 / step) for step in range(1, 101)]
    lines = plain(points, [Marker(step=50, text="nas lost")], width=60)
    assert "┊ nas lost" in lines[0]
    assert abs(lines[0].index("┊") - 6 - 54 // 2) <= 1


def test_words_that_do_not_fit_at_the_right_stand_at_the_left() -> None:
    points = [(step, 5.0 / step) for step in range(1, 101)]
    assert "nas lost ┊" in plain(points, [Marker(step=99, text="nas lost")], width=60)[0]


def test_markers_never_hide_the_curve_nor_each_other() -> None:
    points = [(step, 5.0 / step) for step in range(1, 101)]
    bare = plain(points, width=60)
    marked = plain(points, [Marker(step=step, text=f"host-{step} lost") for step in range(40, 60, 2)], width=60)
    for before, after in zip(bare[:-1], marked[:-1], strict=True):
        assert [char for char in before if char > "\u2800"] == [char for char in after if "\u2800" < char <= "\u28ff"]


@pytest.mark.parametrize("points", [[], [(1, 2.0)], [(7, 0.0), (8, 0.0)], [(1, -1.0), (10**6, 1e30)]])
def test_any_points_can_be_drawn(points) -> None:
    assert len(plain(points)) == 8


losses = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(losses, st.integers(10, 150), st.integers(3, 40))
def test_the_drawing_has_the_asked_size(values, width, height) -> None:
    lines = curve(list(enumerate(values, 1)), [Marker(step=2, text="x lost")], width, height, DARK)
    assert len(lines) == height
    assert all(line.cell_len <= width for line in lines)


def test_one_line_of_blocks_stands_between_the_first_and_the_last_loss() -> None:
    points = [(step, 5.0 - step / 100) for step in range(1, 300)]
    line = loss_blocks(points, 40, DARK).plain
    assert line.startswith("4.990 █")
    assert line.endswith("▁ 2.010")
    assert len(line) == 40
