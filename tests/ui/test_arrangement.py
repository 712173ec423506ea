"""How the screen is divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_tui.ui.arrangement import arrange


@given(st.integers(1, 300), st.integers(1, 120), st.integers(0, 200), st.integers(0, 200), st.booleans(), st.booleans())
def test_the_panels_fill_the_screen_exactly(width, height, hosts, workers, run, final) -> None:
    got = arrange(width, height, hosts=hosts, workers=workers, run=run, final=final)
    assert got.hosts + got.outcome + got.figures + got.idle + got.events == max(1, height - 2)
    if got.side_by_side:
        assert got.loss == got.time + got.timeline + got.rate == got.figures
    else:
        assert got.loss + got.time == got.figures
    assert min(got.hosts, got.outcome, got.loss, got.time, got.timeline, got.rate, got.events) >= 0
    assert all(part == 0 or part >= 3 for part in (got.loss, got.time, got.timeline, got.rate, got.events))


DIVISIONS = """
80x11 4 4 runs | 9 0 0 0 0 0 0 0 0
80x11 12 9 ended | 9 0 0 0 0 0 0 0 0
80x11 2 1 runs | 9 0 0 0 0 0 0 0 0
80x12 4 4 runs | 6 0 0 0 0 0 0 4 0
80x12 4 0 none | 6 0 0 0 0 0 0 4 0
80x12 12 9 ended | 5 1 0 0 0 0 0 4 0
80x12 2 1 runs | 5 0 0 0 0 0 0 5 0
80x15 4 4 runs | 7 0 0 0 0 0 0 6 0
80x15 4 0 none | 7 0 0 0 0 0 0 6 0
80x15 12 9 ended | 8 1 0 0 0 0 0 4 0
80x15 2 1 runs | 5 0 3 0 0 0 0 5 0
80x16 4 4 runs | 7 0 3 0 0 0 0 4 0
80x16 12 9 ended | 9 1 0 0 0 0 0 4 0
80x16 2 1 runs | 5 0 3 0 0 0 0 6 0
80x18 4 4 runs | 7 0 3 0 0 0 0 6 0
80x18 4 0 none | 7 0 0 0 0 0 0 9 0
80x18 12 9 ended | 8 1 3 0 0 0 0 4 0
80x18 2 1 runs | 5 0 3 4 0 0 0 4 0
80x20 4 4 runs | 7 0 3 0 0 0 0 8 0
80x20 4 0 none | 7 0 0 0 0 0 7 4 0
80x20 12 9 ended | 10 1 3 0 0 0 0 4 0
80x20 2 1 runs | 5 0 3 4 0 0 0 6 0
80x23 4 4 runs | 7 0 3 7 0 0 0 4 0
80x23 12 9 ended | 13 1 3 0 0 0 0 4 0
80x23 2 1 runs | 5 0 3 4 0 0 0 9 0
80x24 4 4 runs | 7 0 3 7 0 0 0 5 0
80x24 4 0 none | 7 0 0 0 0 0 7 8 0
80x24 12 9 ended | 7 1 3 7 0 0 0 4 0
80x24 2 1 runs | 5 0 3 4 0 0 0 10 0
80x40 4 4 runs | 7 0 11 7 0 0 0 13 0
80x40 4 0 none | 7 0 0 0 0 0 7 24 0
80x40 12 9 ended | 15 1 3 7 0 0 0 12 0
80x40 2 1 runs | 5 0 14 4 0 0 0 15 0
80x60 4 4 runs | 7 0 15 7 0 0 0 29 0
80x60 4 0 none | 7 0 0 0 0 0 7 44 0
80x60 12 9 ended | 15 1 15 7 0 0 0 20 0
80x60 2 1 runs | 5 0 15 4 0 0 0 34 0
99x40 4 4 runs | 7 0 11 7 0 0 0 13 0
99x40 4 0 none | 7 0 0 0 0 0 7 24 0
99x40 12 9 ended | 15 1 3 7 0 0 0 12 0
99x40 2 1 runs | 5 0 14 4 0 0 0 15 0
100x20 4 4 runs | 6 0 7 7 0 0 0 5 0
100x20 4 0 none | 7 0 0 0 0 0 7 4 0
100x20 12 9 ended | 4 1 8 8 0 0 0 5 0
100x20 2 1 runs | 5 0 7 7 0 0 0 6 0
100x24 4 4 runs | 7 0 8 8 0 0 0 7 0
100x24 4 0 none | 7 0 0 0 0 0 7 8 0
100x24 12 9 ended | 7 1 9 9 0 0 0 5 0
100x24 2 1 runs | 5 0 9 9 0 0 0 8 0
100x30 4 4 runs | 7 0 11 11 0 0 0 10 0
100x30 12 9 ended | 11 1 9 9 0 0 0 7 0
100x30 2 1 runs | 5 0 12 5 0 7 0 11 0
120x40 4 4 runs | 7 0 17 11 0 6 0 14 0
120x40 4 0 none | 7 0 0 0 0 0 7 24 0
120x40 12 9 ended | 15 1 12 12 0 0 0 10 0
120x40 2 1 runs | 5 0 18 5 0 13 0 15 0
120x60 4 4 runs | 7 0 28 11 0 17 0 23 0
120x60 4 0 none | 7 0 0 0 0 0 7 44 0
120x60 12 9 ended | 15 1 23 23 0 0 0 19 0
120x60 2 1 runs | 5 0 29 5 0 24 0 24 0
160x60 4 4 runs | 7 0 28 11 10 7 0 23 56
160x60 4 0 none | 7 0 0 0 0 0 7 44 56
160x60 12 9 ended | 15 1 23 23 0 0 0 19 56
160x60 2 1 runs | 5 0 29 5 4 20 0 24 56
200x47 4 4 runs | 7 0 20 11 0 9 0 18 56
200x47 12 9 ended | 15 1 15 15 0 0 0 14 56
200x47 2 1 runs | 5 0 22 5 4 13 0 18 56
200x100 4 4 runs | 7 0 34 11 10 13 0 57 56
200x100 4 0 none | 7 0 0 0 0 0 7 84 56
200x100 12 9 ended | 15 1 34 19 0 15 0 48 56
200x100 2 1 runs | 5 0 34 5 4 25 0 59 56
"""
"""Size, hosts, workers, run | lines of hosts, outcome, loss, time, timeline, rate, idle, events; cells of details."""


@pytest.mark.parametrize("line", DIVISIONS.strip().splitlines())
def test_the_division_at_these_sizes_is_the_accepted_one(line: str) -> None:
    given, wanted = line.split(" | ")
    size, hosts, workers, state = given.split()
    width, height = map(int, size.split("x"))
    got = arrange(width, height, hosts=int(hosts), workers=int(workers), run=state != "none", final=state == "ended")
    lines = (got.hosts, got.outcome, got.loss, got.time, got.timeline, got.rate, got.idle, got.events)
    assert " ".join(map(str, (*lines, got.details_width))) == wanted
    assert got.framed == (height >= 12)
    assert got.side_by_side == (got.figures > 0 and width >= 100)
