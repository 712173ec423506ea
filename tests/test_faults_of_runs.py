"""A run's faults as rows: what happened, what was done about it, what it cost, and when it was over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hetero_tui import faults
from hetero_tui.faults import after
from hetero_tui.run_fold import fold_run
from hetero_tui.state import FAULTS, Fault, RunView, WorkerView
from remote_agent import protocol
from tests.specs import run_step

RUN = RunView(run="text-1", job="text")


def fault(number: int = 1, **changes: Any) -> Fault:
    known = {"time": 10.0, "step": 5, "host": "nas", "worker": "nas/cpu", "word": faults.LOST, "what": "killed"}
    return Fault(number=number, **known | changes)


def run(*known: Fault, **changes: Any) -> RunView:
    return replace(RUN, faults=known, **changes)


def lost(cause: str, time: float = 20.0, worker: str = "nas/cpu", **more: Any) -> protocol.WorkerLost:
    host = worker.partition("/")[0]
    return protocol.WorkerLost(seq=1, time=time, worker=worker, host=host, device="cpu", step=7, cause=cause, **more)


def reissued(samples: int = 1200, stall_s: float | None = 0.5, to: str = "pi/cpu") -> protocol.SliceReissued:
    return protocol.SliceReissued(seq=1, time=30.0, step=7, worker="nas/cpu", to=to, samples=samples, stall_s=stall_s)


def slow(factor: float) -> protocol.WorkerSlow:
    return protocol.WorkerSlow(seq=1, time=40.0, worker="nas/cpu", host="nas", step=9, factor=factor)


def test_a_lost_worker_is_a_row_with_the_pause_beside_its_cause() -> None:
    (row,) = after(RUN, lost("killed", retry_s=16.0))
    assert (row.number, row.time, row.step, row.host, row.worker) == (1, 20.0, 7, "nas", "nas/cpu")
    assert (row.word, row.what, row.retry_s, row.back, row.tries) == (faults.LOST, "killed", 16.0, None, 0)


def test_a_worker_that_fails_on_its_way_back_is_the_same_row_with_a_try_more() -> None:
    (row,) = after(run(fault()), lost("no driver", retry_s=4.0))
    assert (row.number, row.tries, row.retry_s, row.what) == (1, 1, 20.0 - 10.0 + 4.0, "killed")
    (row,) = after(run(row), lost("no driver"))
    assert (row.tries, row.retry_s) == (2, None)
    back = fault(back=12.0)
    assert [row.number for row in after(run(back), lost("again"))] == [1, 2], "that one was over"
    assert len(after(run(fault()), lost("killed", worker="pi/cpu"))) == 2
    assert len(after(run(fault(word=faults.SLOW)), lost("killed"))) == 2


def test_a_drained_worker_is_no_fault() -> None:
    assert after(run(fault()), lost(protocol.DRAINED)) == (fault(),)


def test_of_many_faults_the_newest_are_kept_and_counted_on() -> None:
    known = tuple(fault(number, back=1.0) for number in range(1, FAULTS + 1))
    rows = after(run(*known), lost("killed"))
    assert len(rows) == FAULTS
    assert (rows[0].number, rows[-1].number) == (2, FAULTS + 1)


def test_a_worker_that_is_back_ends_all_that_it_was_away_for() -> None:
    joined = protocol.WorkerJoined(seq=1, time=50.0, worker="nas/cpu", host="nas", device="cpu")
    rows = (fault(1), fault(2, word=faults.SLOW), fault(3, worker="pi/cpu"), fault(4, back=3.0))
    assert [row.back for row in after(run(*rows), joined)] == [50.0, None, None, 3.0]


def test_a_slice_that_went_to_another_is_what_was_done_and_not_what_it_cost() -> None:
    (row,) = after(run(fault()), reissued())
    assert (row.done, row.stall_s, row.back) == ("1,200 samples went to pi", None, None)
    (row,) = after(run(replace(row, stall_s=0.5)), reissued(10, 0.25))
    assert (row.done, row.stall_s) == ("1,210 samples went to pi", 0.5), "of two steps"
    (row,) = after(run(row), reissued(5, to="mac/mps"))
    assert row.done == "1,210 samples went to pi; 5 samples went to mac"
    (row,) = after(run(replace(row, done=f"{row.done}; back to step 3")), reissued(90))
    assert row.done == "1,300 samples went to pi; 5 samples went to mac; back to step 3"


def test_a_late_slice_is_a_fault_that_is_over_with_its_reissue() -> None:
    (row,) = after(RUN, reissued())
    assert (row.word, row.what, row.host, row.back) == (faults.LATE, "its slice was late", "nas", 30.0)
    assert row.over == "mended", "when the host follows the run again is not told"
    assert len(after(run(fault(word=faults.SLOW)), reissued())) == 2
    assert len(after(run(fault(worker="pi/cpu")), reissued())) == 2


def starting(name: str = "nas/cpu") -> protocol.WorkerStarting:
    return protocol.WorkerStarting(seq=1, time=35.0, worker=name, host=name.partition("/")[0], device="cpu")


def resumed(**changes: Any) -> protocol.RunResumed:
    words = {"seq": 1, "time": 50.0, "step": 5, "host": "pi", "checkpoint": ""}
    return protocol.RunResumed(**words | changes)


@pytest.mark.parametrize(
    "anew",
    [
        starting(),
        resumed(checkpoint="/c", cause="a step takes 3 s", went_back=True),
        resumed(checkpoint="/c", cause="stopped"),
        resumed(cause="lost its coordinator"),
    ],
)
def test_a_slowdown_is_over_once_the_device_is_measured_anew(anew: protocol.Event) -> None:
    """No event tells any more when such a device is as fast as it once was."""
    slowed = replace(worker("nas/cpu", 0.5), slow_factor=0.4)
    view = folded(run(fault(word=faults.SLOW), fault(2, back=9.0), workers=(slowed,)), anew)
    row = next(each for each in view.faults if each.word == faults.SLOW)
    assert (row.back, row.over) == (anew.time, "counts as usual")
    assert [each.slow_factor for each in view.workers] == [None]


def test_a_run_that_starts_over_for_its_job_is_a_row_too() -> None:
    cause = "a parameter has a gradient in some steps only"
    view = folded(RUN, *(made(number, float(number)) for number in range(1, 7)))
    view = folded(view, resumed(time=6.5, step=4, cause=cause, went_back=True))
    (row,) = view.faults
    assert (row.word, row.what, row.host) == (faults.STARTED_OVER, cause, "pi")
    assert row.done == "back to step 4, 2 steps made again"
    view = folded(view, made(5, 9.0), made(6, 10.0))
    assert view.faults[0].back is None, "none of them is new"
    view = folded(view, made(7, 11.0))
    assert (view.faults[0].back, view.faults[0].stall_s) == (11.0, pytest.approx(11.0 - 6.0 - 1.0))


def test_each_slowdown_is_a_row_until_the_device_is_back_at_its_speed() -> None:
    (row,) = after(RUN, slow(0.4))
    assert (row.word, row.what, row.step) == (faults.SLOW, "slowed to ×0.40", 9)
    (first, more) = after(run(replace(row, time=30.0)), slow(0.2))
    assert (first.time, first.what, first.back, first.over) == (30.0, "slowed to ×0.40", 40.0, "slowed again")
    assert (more.number, more.time, more.what, more.back) == (2, 40.0, "slowed to ×0.20", None)
    (row,) = after(run(row), slow(1.0))
    assert (row.back, row.over) == (40.0, "")
    assert [each.number for each in after(run(row), slow(0.5))] == [1, 2]
    assert after(run(fault()), slow(1.0)) == (fault(),), "a lost one is not back by that"
    other = fault(word=faults.SLOW, worker="pi/cpu")
    assert after(run(other), slow(1.0)) == (other,)
    assert len(after(run(other), slow(0.5))) == 2


def worker(name: str, fraction: float) -> WorkerView:
    return WorkerView(worker=name, host=name.partition("/")[0], device="cpu", fraction=fraction, samples=1)


def cut(**samples: int) -> protocol.Rebalanced:
    shares = tuple(
        protocol.Share(worker=f"{host}/cpu", host=host, device="cpu", samples=count, speed=1.0)
        for host, count in samples.items()
    )
    return protocol.Rebalanced(seq=1, time=1.0, step=1, shares=shares, reason="x")


def joined(name: str, time: float) -> protocol.WorkerJoined:
    return protocol.WorkerJoined(seq=1, time=time, worker=name, host=name.partition("/")[0], device="cpu")


def made(step: int, time: float) -> protocol.Step:
    return run_step(step, seq=1, time=time)


@pytest.mark.parametrize(
    ("number", "time", "cost"),
    [(6, 13.0, 2.0), (6, 11.5, None), (6, 12.0, 1.0), (6, 11.99, None), (8, 13.5, None), (8, 17.0, 4.0)],
)
def test_a_fault_whose_cost_no_event_gives_costs_the_gap_between_two_steps(
    number: int, time: float, cost: float | None
) -> None:
    """The last step ended at 10 s, the usual one takes 1 s, and a fault was seen at 10.5 s."""
    known = run(fault(time=10.5), recent=(made(4, 9.0), made(5, 10.0)))
    assert known.interval == pytest.approx(1.0)
    (row,) = after(known, made(number, time))
    assert row.stall_s == (None if cost is None else pytest.approx(cost))


def test_a_gap_is_the_cost_of_no_fault_that_was_before_it_and_has_in_it_what_was_known_before() -> None:
    recent = (made(4, 9.0), made(5, 10.0))
    before, told = fault(time=9.5), fault(time=10.5, stall_s=0.1, word=faults.SHARD)
    assert after(run(before, recent=recent), made(6, 20.0)) == (before,)
    whole = replace(told, stall_s=9.0)
    assert after(run(told, recent=recent), made(6, 20.0)) == (whole,), "until it was resumed, and until the next step"
    assert after(run(told, fault(2, time=10.6), recent=recent), made(6, 20.0)) == (
        whole,
        fault(2, time=10.6, stall_with=1),
    )
    assert after(run(told, recent=recent), made(6, 11.5)) == (told,), "no more than was known"
    assert after(run(fault(time=10.5)), made(6, 20.0)) == (fault(time=10.5),), "no step before"


def test_a_worker_known_to_be_silent_after_the_step_that_waited_for_it_has_cost_that_wait() -> None:
    recent = (made(1, 6.0), made(2, 7.0), made(3, 8.0), made(4, 9.0), made(5, 12.0))

    def silent(time: float) -> protocol.WorkerLost:
        return lost("no answer for 2.5 s", time, silent_s=2.5)

    assert after(run(recent=recent), silent(12.1))[0].stall_s == pytest.approx(2.0)
    assert after(run(recent=recent), silent(14.6))[0].stall_s is None, "that was before it fell silent"
    assert after(run(recent=recent), lost("killed", 12.1))[0].stall_s is None
    assert after(run(recent=recent[:-1]), silent(9.1))[0].stall_s is None, "all were as usual"
    known = fault(time=11.0, stall_s=1.0, worker="pi/cpu")
    assert after(run(known, recent=recent), silent(12.1))[1].stall_s is None, "that row has it"


def sent_back(time: float, step: int, lost: str = "nas") -> protocol.RunResumed:
    return protocol.RunResumed(
        seq=1, time=time, step=step, host="pi", checkpoint="/c", cause="x", went_back=bool(lost), lost=lost
    )


def folded(view: RunView, *happened: protocol.Event) -> RunView:
    for event in happened:
        view, _, _ = fold_run(view, event)
    return view


def test_a_lost_stage_has_cost_the_time_until_the_first_step_that_was_not_made_before() -> None:
    stages = tuple(
        protocol.Stage(worker=name, first=at, last=at + 2, seconds=1.0, memory=1)
        for at, name in ((0, "nas/cpu"), (2, "pi/cpu"))
    )
    shares = tuple(
        protocol.Share(worker=stage.worker, host=stage.worker[:-4], device="cpu", samples=4, speed=1.0)
        for stage in stages
    )
    plan = protocol.PlanMade(seq=1, time=0.0, strategy="pipeline", shares=shares, stages=stages)
    begun = folded(RUN, plan, *(made(number, float(number)) for number in range(1, 7)))
    again = [made(4, 20.0), made(5, 21.0), made(6, 22.0)]
    view = folded(begun, lost("killed", 6.5), sent_back(9.0, 3))
    assert view.faults[0].done == "back to step 3, 3 steps made again; the model is cut anew"
    view = folded(view, *again)
    assert view.faults[0].stall_s is None, "none of them is new"
    view = folded(view, made(7, 23.0))
    assert view.faults[0].stall_s == pytest.approx(23.0 - 6.0 - 1.0)
    assert folded(view, made(8, 24.0)).faults == view.faults
    twice = folded(begun, lost("killed", 6.5), sent_back(9.0, 3), made(4, 20.0), joined("nas/cpu", 20.5))
    twice = folded(twice, lost("killed", 20.6), sent_back(22.0, 3), *(made(n, 20.0 + n) for n in (4, 5, 6, 7)))
    assert [row.done.partition(";")[0] for row in twice.faults] == ["back to step 3, 3 steps made again"] * 2
    assert twice.stalled_seconds == pytest.approx(27.0 - 6.0 - 1.0), "once"


def test_lost_shards_and_heads_are_rows() -> None:
    (shard,) = after(RUN, protocol.ServerLost(seq=1, time=2.0, host="nas", step=3, cause="no answer for 3.0 s"))
    assert (shard.word, shard.host, shard.step, shard.what) == (faults.SHARD, "nas", 3, "no answer for 3.0 s")
    (head,) = after(RUN, protocol.HeadLost(seq=1, time=2.0, host="nas", step=3, cause="x" * 300))
    assert head.word == faults.HEAD
    assert len(head.what) <= 160


@pytest.mark.parametrize("is_told", [True, False])
def test_a_lost_coordinator_is_a_fault_also_where_what_would_tell_it_was_lost_as_well(is_told: bool) -> None:
    before = run(last_event=61.0, step=8)
    if is_told:
        before = replace(before, faults=after(before, protocol.CoordinatorLost(seq=9, time=61.0, host="nas", step=8)))
    resumed = protocol.RunResumed(
        seq=10, time=68.0, step=8, host="nas", checkpoint="", cause="lost its coordinator", notes=("3 workers",)
    )
    (row,) = after(before, resumed)
    assert (row.word, row.host, row.time, row.stall_s, row.back) == (faults.COORDINATOR, "nas", 61.0, 7.0, 68.0)
    stopped = replace(resumed, checkpoint="/c", cause="stopped")
    assert after(run(last_event=61.0), stopped) == (), "a user stopped it"
    gone_back = replace(resumed, cause="nas was lost", went_back=True)
    assert after(run(last_event=61.0), gone_back) == ()


TAKEN_OVER = {"host": "nas", "checkpoint": "", "cause": "lost its coordinator"}
SEEN_LATE = protocol.CoordinatorLost(seq=1, time=10.5, host="nas", step=6)


@pytest.mark.parametrize(
    ("happened", "time", "stall", "total"),
    [
        ((SEEN_LATE, resumed(time=11.9, step=6, **TAKEN_OVER), made(7, 12.9)), 10.5, 5.9, 12.9),
        ((SEEN_LATE, made(7, 11.8), resumed(time=11.9, step=7, **TAKEN_OVER), made(8, 12.0)), 10.5, 4.8, 12.0),
        ((resumed(time=62.0, step=6, **TAKEN_OVER), made(7, 63.0)), 6.0, 56.0, 63.0),
        ((made(7, 62.0), made(8, 62.1), resumed(time=62.2, step=8, **TAKEN_OVER), made(9, 62.5)), 6.0, 55.0, 62.5),
    ],
    ids=["told", "told, with a step that was not written", "not told", "not told, with steps that were not written"],
)
def test_a_lost_coordinator_costs_the_time_from_the_last_step_before_to_the_first_one_after(
    happened: tuple[protocol.Event, ...], time: float, stall: float, total: float
) -> None:
    """It is noticed, and its steps are written, long after it was lost."""
    begun = folded(run(started=0.0), *(made(number, float(number)) for number in range(1, 7)))
    view = folded(begun, *happened)
    (row,) = view.faults
    assert (row.word, row.time, row.stall_s) == (faults.COORDINATOR, time, pytest.approx(stall))
    assert row.back == next(event.time for event in happened if isinstance(event, protocol.RunResumed))
    assert view.seconds == pytest.approx(total), "a lost run was not stopped: its stall is a part of its time"
    last = view.recent[-1]
    assert folded(view, made(last.step + 1, last.time + 9.0)).faults == view.faults, "a later pause is another matter"


def test_a_lost_head_costs_the_time_until_the_first_new_step_and_a_pause_of_a_stopped_run_is_no_fault() -> None:
    begun = folded(run(started=0.0), *(made(number, float(number)) for number in range(1, 7)))
    gone = protocol.HeadLost(seq=1, time=60.0, host="nas", step=6, cause="no answer")
    view = folded(begun, gone, resumed(time=61.0, step=4, checkpoint="/c"), made(5, 63.0), made(6, 64.0))
    assert [row.stall_s for row in view.faults] == [1.0], "what is known so far"
    view = folded(view, made(7, 65.0), made(8, 66.0))
    assert [row.stall_s for row in view.faults] == [pytest.approx(65.0 - 6.0 - 1.0)]
    assert view.stalled_seconds < (view.seconds or 0.0)
    paused = folded(begun, resumed(time=9000.0, step=6, checkpoint="/c", cause="stopped after step 6"), made(7, 9001.0))
    assert (paused.faults, paused.seconds) == ((), pytest.approx(7.0))
