"""A run as it is shown after each of its events: figures, workers, phases, and the line in the log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hetero_tui.events import Level
from hetero_tui.run_fold import fold_run
from hetero_tui.state import LOSS_POINTS, RECENT_STEPS, Phase, RunView
from remote_agent import protocol
from remote_agent.states import RunState
from tests.specs import run_step

RUN = RunView(run="text-1", job="text")


def after(*happened: protocol.Event, run: RunView = RUN) -> RunView:
    for event in happened:
        run, _, _ = fold_run(run, event)
    return run


def line(event: protocol.Event, run: RunView = RUN) -> tuple[Level, str]:
    return fold_run(run, event)[1:]


def started(time: float = 100.0, seq: int = 1) -> protocol.RunStarted:
    return protocol.RunStarted(
        seq=seq, time=time, run="text-1", job="text", host="a", iterations=100, batch_size=64, parameters=1000
    )


def share(host: str, samples: int) -> protocol.Share:
    return protocol.Share(worker=f"{host}/cpu", host=host, device="cpu", samples=samples, speed=100.0)


def plan(time: float = 103.0, seq: int = 3, **more: Any) -> protocol.PlanMade:
    shares = more.pop("shares", (share("a", 48), share("b", 16)))
    return protocol.PlanMade(seq=seq, time=time, strategy="sync", shares=shares, **more)


def joined(time: float = 102.0, seq: int = 2, name: str = "") -> protocol.WorkerJoined:
    return protocol.WorkerJoined(seq=seq, time=time, worker="b/cpu", host="b", device="cpu", name=name)


def lost(cause: str, worker: str = "b/cpu", retry_s: float | None = None) -> protocol.WorkerLost:
    host = worker.partition("/")[0]
    return protocol.WorkerLost(
        seq=5, time=110.0, worker=worker, host=host, device="cpu", step=7, cause=cause, retry_s=retry_s
    )


def step(number: int, time: float = 105.0, loss: float | None = 1.0, samples: int = 64) -> protocol.Step:
    return run_step(number, seq=number + 3, time=time, loss=loss, samples=samples)


def resumed(time: float = 200.0, seq: int = 9, **more: Any) -> protocol.RunResumed:
    known: dict[str, Any] = {"step": 40, "host": "b", "checkpoint": "/c/40", "samples": 2560, "iterations": 0}
    return protocol.RunResumed(seq=seq, time=time, **known | more)


def rebalanced(*shares: protocol.Share, reason: str = "") -> protocol.Rebalanced:
    return protocol.Rebalanced(seq=5, time=110.0, step=7, shares=shares, reason=reason)


# --- The start, part by part -----------------------------------------------------------------------------------------


def test_each_part_of_a_start_ends_with_the_next_one_and_the_last_with_the_first_step() -> None:
    run = after(started(), joined(), plan(), step(1))
    assert [(phase.began, phase.ended) for phase in run.phases] == [(100.0, 102.0), (102.0, 103.0), (103.0, 105.0)]
    assert after(step(2, 106.0), run=run).phases == run.phases
    assert after(plan(107.0), run=run).phases == run.phases, "a later plan is no start"
    assert after(joined(107.0), run=run).phases == run.phases


def test_a_resumed_runs_history_tells_nothing_of_how_far_its_start_is_now() -> None:
    began = Phase(name="coordinator", began=150.0)
    known = replace(RUN, phases=(began,), history=9)
    assert after(started(), joined(), plan(), step(1), run=known).phases == (began,)
    failed = protocol.RunFailed(seq=9, time=120.0, step=1, host="a", cause="x", hint="", detail="")
    assert after(failed, run=known).phases == (began,), "its last word was taken back"
    assert [phase.began for phase in after(resumed(), run=known).phases] == [200.0]
    assert [phase.began for phase in after(started(seq=10), run=known).phases] == [150.0, 100.0]


def test_a_run_that_goes_on_where_it_was_starts_nothing_anew() -> None:
    run = after(started(), joined(), plan(), step(1))
    assert after(resumed(checkpoint=""), run=run).phases == run.phases
    assert [phase.began for phase in after(resumed(), run=run).phases] == [200.0]


def test_a_record_from_before_some_fields_were_added_still_opens() -> None:
    lost = '"worker":"b/cpu","host":"b","device":"cpu","step":7,"cause":"no answer for 1.0 s (tried again in 4 s)"'
    lines = (
        '{"seq":1,"time":1.0,"kind":"plan","strategy":"sync","shares":[],"reasons":["b/cpu: 16 of 64 samples"]}',
        f'{{"seq":2,"time":2.0,"kind":"worker_lost",{lost}}}',
        '{"seq":3,"time":3.0,"kind":"run_resumed","step":5,"host":"a","checkpoint":"/c","cause":"b/cpu was lost"}',
    )
    happened = [event for event in map(protocol.decode_event, lines) if event is not None]
    run = after(*happened)
    assert (len(happened), run.step, run.plan and run.plan.reasons) == (3, 5, ("b/cpu: 16 of 64 samples",))
    assert [fault.what for fault in run.faults] == ["no answer for 1.0 s (tried again in 4 s)"]


# --- Figures ---------------------------------------------------------------------------------------------------------


def test_a_resumed_run_is_as_its_checkpoint_was() -> None:
    made = tuple(step(number, 100.0 + number) for number in range(38, 44))
    before = replace(after(started(), plan(), *made), checkpoint="/c/20", checkpoint_step=20)
    run = after(resumed(), run=before)
    assert (run.step, run.samples, run.iterations, run.checkpoint, run.checkpoint_step) == (40, 2560, 100, "/c/40", 40)
    assert [number for number, _ in run.losses] == [38, 39, 40]
    assert (run.recent, run.detail, run.ended, run.state) == ((), "", None, RunState.RUNNING)
    assert run.away_seconds == pytest.approx(200.0 - 143.0)
    copy = after(resumed(checkpoint="", samples=0, iterations=120), run=before)
    assert (copy.checkpoint, copy.checkpoint_step, copy.detail, copy.iterations) == ("/c/20", 20, "", 120)
    assert copy.samples == before.samples
    assert after(resumed()).away_seconds == 0.0
    assert after(resumed(time=10.0), run=before).away_seconds == 0.0, "clocks of two hosts"


def test_a_run_that_is_being_stopped_stays_so() -> None:
    stopping = replace(RUN, state=RunState.STOPPING)
    for event in (started(), resumed()):
        assert after(event, run=stopping).state is RunState.STOPPING
        assert after(event, run=replace(RUN, state=RunState.STARTING)).state is RunState.RUNNING


def test_an_evaluation_counts_up_to_its_own_step() -> None:
    def evaluated(number: int, *, best: bool) -> protocol.Evaluated:
        return protocol.Evaluated(
            seq=5, time=1.0, step=number, samples=10, epoch=None, metrics={"loss": 0.5}, best=best, seconds=1
        )

    run = after(evaluated(40, best=True), evaluated(41, best=False))
    assert (run.evaluated and run.evaluated.step, run.best and run.best.step) == (41, 40)
    back = after(resumed(), run=run)
    assert (back.evaluated, back.best and back.best.step) == (None, 40)
    assert line(evaluated(40, best=True))[1] == "step 40 evaluated on 10 samples: loss 0.5, the best so far"
    assert line(evaluated(40, best=False))[1] == "step 40 evaluated on 10 samples: loss 0.5"


def test_losses_are_thinned_once_they_are_too_many_and_steps_that_were_left_out_count() -> None:
    run = after(*(step(number) for number in range(1, LOSS_POINTS + 1)))
    assert len(run.losses) == LOSS_POINTS
    run = after(step(LOSS_POINTS + 1), run=run)
    assert [number for number, _ in run.losses[:3]] == [1, 3, 5]
    assert len(run.losses) == LOSS_POINTS // 2 + 1
    assert len(run.recent) == RECENT_STEPS
    assert run.samples == 64 * (LOSS_POINTS + 1)
    assert after(step(LOSS_POINTS + 11), run=run).samples == run.samples + 10 * 64
    assert after(step(7)).samples == 64, "of the first one that is known it is not known what was before"
    assert after(step(5), step(5)).samples == 128
    assert after(step(1, loss=None)).losses == ()


def test_a_late_copy_of_a_checkpoint_is_not_the_newest_one() -> None:
    def saved(step: int, *hosts: str) -> protocol.CheckpointSaved:
        return protocol.CheckpointSaved(seq=5, time=1.0, step=step, path=f"step-{step}", host="a", hosts=("a", *hosts))

    run = after(started(), saved(5), saved(10))
    assert line(saved(5, "b"), run) == (Level.INFO, "checkpoint of step 5 saved on a, b")
    late = after(saved(5, "b"), run=run)
    assert (late.checkpoint, late.checkpoint_step) == ("step-10", 10)
    again = after(saved(6), run=late)
    assert (again.checkpoint, again.checkpoint_step) == ("step-6", 6), "the run went back, and made steps again"


# --- Workers ---------------------------------------------------------------------------------------------------------


def test_a_worker_without_a_share_keeps_its_place_and_its_factor() -> None:
    slow = protocol.WorkerSlow(seq=4, time=104.0, worker="b/cpu", host="b", step=3, factor=0.5)
    run = after(plan(), slow, rebalanced(share("b", 16), share("a", 16)))
    assert [(each.worker, each.samples, each.fraction, each.slow_factor) for each in run.workers] == [
        ("a/cpu", 16, 0.5, None),
        ("b/cpu", 16, 0.5, 0.5),
    ]
    alone = after(rebalanced(share("a", 32)), run=run)
    assert [(each.samples, each.fraction) for each in alone.workers] == [(32, 1.0), (0, 0.0)]
    nothing = after(rebalanced(share("a", 0), share("b", 0)), run=run)
    assert [each.fraction for each in nothing.workers] == [0.0, 0.0]


# --- The log ---------------------------------------------------------------------------------------------------------
