"""The figures of ``benchmarks.faults`` for events whose figures are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.faulty import figures, stage
from benchmarks.faulty.figures import Absence, Mark
from benchmarks.faulty.job import Paced
from remote_agent import protocol

HOSTS = ("a", "b", "c")
SHARES = {"a": 0.5, "b": 0.3, "c": 0.2}


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
    assert figures.samples_between(marks, 0, 8) == 30


def test_a_stall_is_put_down_to_a_fault_only_where_it_overlaps_it() -> None:
    marks = tuple(Mark(time, number, 10) for number, time in enumerate([0, 1, 2, 5, 6, 7, 8]))
    assert figures.stall(marks, 6.5, 7.5) == 0
    assert figures.noise(marks, [(6.5, 7.5)]) == pytest.approx(2)
    with pytest.raises(ValueError, match="no step"):
        figures.stall(marks, 20, 21)


def test_live_capacity_counts_each_hosts_absence_once_and_by_its_part() -> None:
    live = figures.live_seconds(0, 10, SHARES, [Absence("b", 2, 6), Absence("b", 4, 8), Absence("a", 5, 6, 0.5)])
    assert live == pytest.approx(10 - 0.3 * 6 - 0.5 * 0.5)
    assert figures.live_seconds(0, 10, SHARES, [Absence("c", -5, 20)]) == pytest.approx(8)
    assert figures.live_seconds(0, 10, SHARES, []) == pytest.approx(10)


def test_a_worker_is_away_from_the_word_that_it_is_lost_until_it_joins() -> None:
    lost = protocol.WorkerLost(seq=1, time=5, worker="b/cpu", host="b", device="cpu", step=3, cause="gone")
    again = protocol.WorkerLost(seq=2, time=6, worker="b/cpu", host="b", device="cpu", step=3, cause="gone")
    back = protocol.WorkerJoined(seq=3, time=9, worker="b/cpu", host="b", device="cpu")
    late = protocol.WorkerLost(seq=4, time=11, worker="c/cpu", host="c", device="cpu", step=9, cause="gone")
    assert figures.away_spans([lost, again, back, late], HOSTS, 20) == (Absence("b", 5, 9), Absence("c", 11, 20))


def test_a_host_that_is_not_in_the_plan_of_a_run_that_went_on_is_away_and_one_that_is_in_it_is_back() -> None:
    lost = protocol.WorkerLost(seq=1, time=5, worker="b/cpu", host="b", device="cpu", step=3, cause="gone")
    share = protocol.Share(worker="b/cpu", host="b", device="cpu", samples=10, speed=1.0, overhead_s=0.0)
    plan = protocol.PlanMade(seq=2, time=9, strategy="sync", shares=(share, replace(share, worker="a/cpu", host="a")))
    joined = protocol.WorkerJoined(seq=3, time=12, worker="c/cpu", host="c", device="cpu")
    assert figures.away_spans([lost, plan, joined], HOSTS, 20) == (Absence("b", 5, 9), Absence("c", 9, 12))


def test_the_rate_without_a_fault_is_that_of_the_whole_steps_in_its_time() -> None:
    marks = tuple(Mark(time, number, 10) for number, time in enumerate([0.0, 1.0, 2.0, 2.5, 3.0, 9.0]))
    assert figures.rate(marks, 0.5, 3.5) == pytest.approx(30 / 2)
    assert figures.rate(marks, 4, 10) == 0


def test_who_stands_still_until_the_end_has_a_stall_until_then() -> None:
    marks = tuple(Mark(float(time), time, 10) for time in range(5))
    assert figures.stall(figures.closed(marks, 20.0), 10, 20) == pytest.approx(16 - 1)
    assert figures.closed(marks, 4.0) == marks


def test_what_is_kept_is_measured_against_the_capacity_that_was_alive() -> None:
    marks = [Mark(float(second), second, 10) for second in range(10)]  # whole, without a fault: 10 samples/s
    marks += [Mark(12.0 + second, 10 + second, 7) for second in range(8)]  # b is away, and 2 s are lost by it
    marks += [Mark(20.0 + second, 18 + second, 10) for second in range(11)]
    away = [Absence("b", 10, 20)]
    assert figures.kept(marks, 9.5, 29.5, 10.0, SHARES, away) == pytest.approx((8 * 7 + 10 * 10) / (200 - 30))
    assert figures.kept(marks, 9.5, 29.5, 10.0, SHARES, []) == pytest.approx((8 * 7 + 10 * 10) / 200)


def test_a_single_step_too_few_shows_in_the_weights_long_after() -> None:
    whole = stage.plain_weights(1000, Paced())
    assert stage.difference(whole, stage.plain_weights(1000, Paced())) == 0
    assert stage.difference(stage.plain_weights(999, Paced()), whole) > 5 * stage.EXACT
