"""How the screen is divided."""

from __future__ import annotations

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


def test_at_80_by_24_four_hosts_the_loss_the_times_and_two_events_are_all_there() -> None:
    got = arrange(80, 24, hosts=4, workers=4, run=True, final=True)
    assert (got.hosts, got.loss, got.time) == (7, 3, 7)
    assert got.events - 2 >= 2


def test_at_200_by_60_there_are_a_timeline_the_details_and_a_taller_curve() -> None:
    large = arrange(200, 60, hosts=4, workers=3, run=True, final=False)
    usual = arrange(120, 40, hosts=4, workers=3, run=True, final=False)
    assert large.timeline > 0
    assert large.details_width > 0
    assert large.loss >= 1.6 * usual.loss
    assert usual.timeline == usual.details_width == 0


def test_where_there_is_room_for_little_the_hosts_stay() -> None:
    assert arrange(40, 10, hosts=4, workers=3, run=True, final=False).hosts == 8
    assert arrange(60, 20, hosts=4, workers=3, run=True, final=False).hosts >= 7
