"""The curve in braille."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_tui.state import Fault
from hetero_tui.ui.draw.curve import curve, scale_label, smoothed, ticks_line
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


def fault(number: int, step: int) -> Fault:
    return Fault(number=number, time=0.0, step=step, host="nas", worker="nas/cpu", word="lost", what="silent")


def test_a_fault_is_a_number_under_the_axis_at_its_step_and_nothing_in_the_curve() -> None:
    points = [(step, 5.0 / step) for step in range(1, 101)]
    bare, marked = plain(points, width=60, height=8), plain(points, [fault(7, 50)], width=60, height=9)
    assert marked[:-1] == bare
    assert marked[-1].split() == ["7"]
    assert abs(marked[-1].index("7") - 6 - 54 // 2) <= 1


@pytest.mark.parametrize(
    ("ticks", "line"),
    [
        ([(2, 1), (9, 2)], "  1      2  "),
        ([(2, 1), (2, 2), (9, 3)], "  1,2    3  "),
        ([(2, 1), (3, 2), (9, 3)], "  1,2    3  "),
        ([(2, 1), (3, 2), (5, 3), (6, 4)], "  1-3 4     "),
        ([(2, 8), (3, 9), (3, 12)], "  8,9,12    "),
        ([(2, 8), (3, 9), (3, 12), (10, 10), (11, 11)], "  8-12      "),
        ([(11, 14)], "          14"),
        ([(9, 13), (11, 14)], "       13,14"),
        ([], " " * 12),
    ],
)
def test_each_fault_has_its_number_under_the_axis(ticks: list[tuple[int, int]], line: str) -> None:
    assert ticks_line(ticks, 12) == line


@given(st.lists(st.integers(0, 59), max_size=40))
def test_no_fault_is_missing_under_the_axis(columns: list[int]) -> None:
    line = ticks_line([(column, number) for number, column in enumerate(sorted(columns), start=1)], 60)
    told: list[int] = []
    for label in line.split():
        for part in label.split(","):
            first, _, last = part.partition("-")
            told += range(int(first), int(last or first) + 1)
    assert (len(line), told) == (60, [*range(1, len(columns) + 1)])


def test_an_axis_never_shows_one_value_at_two_heights() -> None:
    values = [37.6, 38.0, 38.4]
    label = scale_label(values)
    assert len({label(value) for value in values}) == 3
    assert scale_label([370.0, 9000.0])(8761.4) == "8,761"


def test_a_logarithmic_axis_leaves_out_what_has_no_logarithm_and_says_the_values() -> None:
    lines = [line.plain for line in curve([(1, 100.0), (2, 0.0), (3, 1.0)], (), 30, 8, DARK, logarithmic=True)]
    assert lines[0].startswith(" 100.0 ")
    assert lines[-2].startswith(" 1.000 ")


def test_smoothing_follows_the_curve_without_its_noise() -> None:
    noisy = [(step, 5.0 + (-1) ** step) for step in range(1, 200)]
    assert abs(smoothed(noisy)[-1][1] - 5.0) < 0.1
    assert smoothed([(1, 3.0)]) == [(1, 3.0)]


@pytest.mark.parametrize("points", [[], [(1, 2.0)], [(7, 0.0), (8, 0.0)], [(1, -1.0), (10**6, 1e30)]])
def test_any_points_can_be_drawn(points) -> None:
    assert len(plain(points)) == 8


losses = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(losses, st.integers(10, 150), st.integers(3, 40))
def test_the_drawing_has_the_asked_size(values, width, height) -> None:
    lines = curve(list(enumerate(values, 1)), [fault(1, 2)], width, height, DARK)
    assert len(lines) == height
    assert all(line.cell_len <= width for line in lines)
