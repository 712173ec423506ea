"""A model that is cut by its layers, as a picture."""

from __future__ import annotations

from dataclasses import replace

from hetero_tui.ui.draw.stages import bubble_words, stages_lines, stages_title
from hetero_tui.ui.palette import DARK


def lines(run, width: int, height: int) -> list[str]:
    return [line.plain for line in stages_lines(run, width, height, DARK)]


def test_the_bubble_is_measured_beside_what_was_planned(scenarios) -> None:
    run = scenarios.pipeline().run
    assert stages_title(run) == "3 stages: 8 micro-batches, 5 in flight"
    # 84 ms for one micro-batch and 7 times the slowest stage's 42: of 3 x 378 ms 8 x 84 are computed.
    assert bubble_words(run) == "bubble 51%, 41% planned"
    assert bubble_words(replace(run, recent=())) == "bubble n/a, 41% planned"


def test_a_stage_has_a_cell_at_least_and_no_line_is_too_long(scenarios) -> None:
    run = scenarios.pipeline().run
    for width in range(10, 120):
        assert all(len(line) <= width for line in lines(run, width, 9))
    assert lines(run, 60, 3)[-1] == "and 2 stages more"
