"""The figures of ``benchmarks.faults`` are right for events whose figures are known."""

from __future__ import annotations

import pytest

from benchmarks.faulty import figures, stage
from benchmarks.faulty.figures import Mark
from benchmarks.faulty.job import Paced
from remote_agent import protocol


def step(seq: int, time: float, number: int) -> protocol.Step:
    return protocol.Step(
        seq=seq, time=time, step=number, loss=1.0, samples=10, seconds=1.0, bytes_pushed=0, bytes_pulled=0
    )


def test_a_step_that_is_made_again_is_no_progress_and_does_not_end_a_stall() -> None:
    events = [step(1, 0, 1), step(2, 1, 2), step(3, 2, 3), step(4, 6, 2), step(5, 7, 3), step(6, 8, 4), step(7, 9, 5)]
    marks = figures.progress(events)
    assert [mark.step for mark in marks] == [1, 2, 3, 4, 5]
    assert figures.stall(marks, 2.5, 3.0) == pytest.approx(6 - 1)
    assert figures.noise(marks, [(2.5, 3.0)]) == 0


def test_a_stall_is_put_down_to_a_fault_only_where_it_overlaps_it() -> None:
    marks = tuple(Mark(time, number) for number, time in enumerate([0, 1, 2, 5, 6, 7, 8]))
    assert figures.stall(marks, 6.5, 7.5) == 0
    assert figures.noise(marks, [(6.5, 7.5)]) == pytest.approx(2)
    with pytest.raises(ValueError, match="no step"):
        figures.stall(marks, 20, 21)


def test_a_single_step_too_few_shows_in_the_weights_long_after() -> None:
    whole = stage.plain_weights(1000, Paced())
    assert stage.difference(whole, stage.plain_weights(1000, Paced())) == 0
    assert stage.difference(stage.plain_weights(999, Paced()), whole) > 5 * stage.EXACT
