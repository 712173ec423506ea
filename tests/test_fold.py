"""The fold: what a user sees after each event, and that nothing counts twice."""

from dataclasses import replace

import pytest

from hetero_tui import events
from hetero_tui.event_log import LOG_LINES
from hetero_tui.events import ClusterState, HostState, Level
from hetero_tui.fold import apply
from hetero_tui.intents import call_for
from hetero_tui.reporting.metrics import metrics
from hetero_tui.reports import status_document
from hetero_tui.state import (
    COORDINATOR,
    FIRST_STEP,
    WORKERS,
    State,
    initial,
)
from hetero_tui.text import WHOLE
from hetero_tui.ui.draw.phases import phases_lines
from hetero_tui.ui.header import header_line, verdict
from hetero_tui.ui.palette import DARK
from remote_agent import protocol
from remote_agent.states import RayState, RunState
from tests.specs import run_step

START = initial("lab", (("mercer", "10.0.0.2"), ("nas", "10.0.0.3")))


def share(host: str, samples: int) -> protocol.Share:
    return protocol.Share(worker=f"{host}/cpu", host=host, device="cpu", samples=samples, speed=100.0)


def step(number: int, seq: int, loss: float | None = 1.0) -> protocol.Step:
    return run_step(number, seq=seq, time=100.0 + number, loss=loss)


def run_of(*happened: protocol.Event, start: State = START) -> State:
    state = start
    for event in happened:
        state = apply(state, events.RunProgressed(run="text-1", event=event))
    return state


def started(seq: int = 1) -> protocol.RunStarted:
    return protocol.RunStarted(
        seq=seq, time=100.0, run="text-1", job="text", host="mercer", iterations=100, batch_size=64, parameters=10
    )


def plan(seq: int = 2) -> protocol.PlanMade:
    return protocol.PlanMade(seq=seq, time=100.0, strategy="sync", shares=(share("mercer", 48), share("nas", 16)))


def sampled(host: str, ray: str, time: float = 50.0, epoch: int = 0) -> events.HostSampled:
    sample = protocol.HostSample(time=1.0, cpu_use=0.5, memory_used=1, memory_total=2, ray=RayState(ray), epoch=epoch)
    return events.HostSampled(time=time, host=host, sample=sample)


def both_up() -> State:
    state = START
    for host in ("mercer", "nas"):
        state = apply(state, events.HostChanged(time=1.0, host=host, state=HostState.UP))
    return apply(state, events.ClusterChanged(time=1.0, state=ClusterState.UP, head="mercer"))


def test_a_cluster_that_another_laptop_starts_is_up_once_its_hosts_have_joined() -> None:
    state = START
    for host in ("mercer", "nas"):
        state = apply(state, events.HostChanged(time=1.0, host=host, state=HostState.READY))
    for host in ("mercer", "nas"):
        state = apply(state, sampled(host, "starting"))
    assert (state.cluster_state, state.hosts_up) == (ClusterState.STARTING, 0)
    state = apply(state, sampled("mercer", "running"))
    assert (state.cluster_state, state.hosts_up) == (ClusterState.STARTING, 1)
    state = apply(apply(state, sampled("nas", "starting")), sampled("nas", "running"))
    assert (state.cluster_state, state.hosts_up) == (ClusterState.UP, 2)
    assert [line.text for line in state.log[2:]] == [
        "cluster lab is starting", "mercer is up", "nas is up", "cluster lab is up",
    ]  # fmt: skip


@pytest.mark.parametrize(("ray", "host"), [("stopped", HostState.FAILED), ("none", HostState.READY)])
def test_a_start_by_another_laptop_that_comes_to_nothing_is_over(ray: str, host: HostState) -> None:
    state = apply(apply(START, sampled("nas", "starting")), sampled("nas", ray))
    found = state.host("nas")
    assert found is not None
    assert (found.state, state.cluster_state) == (host, ClusterState.DOWN)


def test_a_cluster_that_is_up_is_not_said_to_start_while_a_host_joins_it() -> None:
    state = both_up()
    joins = events.ClusterChanged(time=60.0, state=ClusterState.STARTING, head=state.head)
    assert (apply(state, joins).cluster_state, apply(state, joins).cluster_phase) == (ClusterState.UP, None)
    another = apply(state, replace(joins, head="nas"))
    assert another.cluster_state is ClusterState.STARTING, "it is formed anew"


def returning() -> State:
    lost = protocol.WorkerLost(
        seq=4, time=102.0, worker="nas/cpu", host="nas", device="cpu", step=2, cause="drained"
    )  # fmt: skip
    state = run_of(started(), plan(), step(1, 3), lost, start=both_up())
    assert [host.state for host in state.hosts] == [HostState.TRAINING, HostState.DRAINED]
    return run_of(protocol.WorkerStarting(seq=5, time=103.0, worker="nas/cpu", host="nas", device="cpu"), start=state)


def state_of_nas(state: State) -> HostState:
    host = state.host("nas")
    assert host is not None
    return host.state


def test_a_host_that_is_brought_back_comes_back_until_it_trains() -> None:
    """The run itself says that its worker is started, so that it is shown wherever the run is followed."""
    joined = protocol.WorkerJoined(seq=7, time=105.0, worker="nas/cpu", host="nas", device="cpu")
    shares = (share("mercer", 48), share("nas", 16))
    with_it = protocol.Rebalanced(seq=8, time=106.0, step=3, shares=shares, reason="nas is back")
    state = returning()
    assert state_of_nas(state) is HostState.RETURNING
    assert state.log[-1].text == "nas: its worker is being started"
    state = run_of(step(2, 6), joined, start=state)
    assert state_of_nas(state) is HostState.RETURNING
    assert state_of_nas(run_of(with_it, start=state)) is HostState.TRAINING
    alone = protocol.Rebalanced(seq=8, time=106.0, step=3, shares=(share("mercer", 64),))
    assert state_of_nas(run_of(alone, start=state)) is HostState.BENCHED


def test_a_paused_host_that_is_drained_is_drained() -> None:
    lost, drained = (
        protocol.WorkerLost(
            seq=seq, time=104.0, worker="nas/cpu", host="nas", device="cpu", step=3, cause=cause, retry_s=retry_s
        )
        for seq, cause, retry_s in ((6, "killed", 16.0), (7, "drained", None))
    )
    assert state_of_nas(run_of(lost, drained, start=returning())) is HostState.DRAINED


def test_following_a_file_again_from_its_start_changes_nothing() -> None:
    happened = [started(), plan(), *(step(number, number + 2) for number in range(1, 9))]
    once = run_of(*happened)
    assert run_of(*happened, start=once) == once
    assert once.run is not None
    assert once.run.samples == 8 * 64


def test_hosts_that_have_samples_are_training_and_stop_when_the_run_ends() -> None:
    state = run_of(started(), plan(), step(1, 3), start=both_up())
    assert [host.state for host in state.hosts] == [HostState.TRAINING, HostState.TRAINING]
    finished = protocol.RunFinished(
        seq=4, time=200.0, steps=1, samples=64, final_loss=1.0, samples_per_second=64.0, checkpoint="/c"
    )
    state = run_of(finished, start=state)
    assert [host.state for host in state.hosts] == [HostState.UP, HostState.UP]
    assert state.run is not None
    assert state.run.state is RunState.FINISHED


def test_a_model_that_is_cut_is_shared_by_blocks_and_who_holds_none_is_not_called_slow() -> None:
    stages = tuple(
        protocol.Stage(worker=f"{host}/cpu", first=first, last=last, seconds=0.01, memory=1)
        for host, first, last in (("nas", 0, 3), ("mercer", 3, 4))
    )
    cut = replace(plan(), strategy="pipeline", stages=stages, micro_batches=8, in_flight=3)
    state = run_of(started(), cut, step(1, 3), start=both_up())
    assert state.run is not None
    assert [worker.fraction for worker in state.run.workers] == [0.25, 0.75]
    assert any(line.text == "blocks of the model, by measured speed: nas 1-3, mercer 4" for line in state.log)
    alone = replace(cut, shares=(share("mercer", 64), share("nas", 0)), stages=(replace(stages[1], first=0, last=4),))
    host = run_of(started(), alone, step(1, 3), start=both_up()).host("nas")
    assert host is not None
    assert (host.state, host.detail) == (
        HostState.BENCHED,
        "holds no blocks of the model: a step is shorter without it",
    )


def test_a_host_that_the_plan_leaves_out_says_so() -> None:
    alone = replace(plan(), shares=(share("mercer", 64),), left_out={"nas": "would slow the\nstep by 9%"})
    host = run_of(started(), alone, step(1, 3), start=both_up()).host("nas")
    assert host is not None
    assert (host.state, host.detail) == (HostState.BENCHED, "the plan leaves it out: would slow the step by 9%")
    host = run_of(started(), plan(), step(1, 3), start=both_up()).host("nas")
    assert host is not None
    assert host.state is HostState.TRAINING


def test_a_slow_device_is_shown_by_its_factor_until_it_is_back_at_its_speed() -> None:
    slow = protocol.WorkerSlow(seq=4, time=1.0, worker="nas/cpu", host="nas", step=1, factor=0.62)
    back = protocol.WorkerSlow(seq=5, time=2.0, worker="nas/cpu", host="nas", step=30, factor=1.0)
    slowed = run_of(started(), plan(), step(1, 3), slow, start=both_up())
    assert (slowed.hosts[1].state, slowed.hosts[1].detail) == (HostState.SLOW, "×0.6")
    assert state_of_nas(run_of(back, start=slowed)) is HostState.TRAINING


def test_an_unreachable_host_keeps_what_was_known_and_when_it_was_last_seen() -> None:
    state = apply(both_up(), sampled("nas", "running", time=50.0))
    state = apply(state, events.HostLost(time=90.0, host="nas", cause="no answer"))
    nas = state.host("nas")
    assert nas is not None
    assert (nas.state, nas.last_seen, nas.since) == (HostState.UNREACHABLE, 50.0, 90.0)
    assert nas.sample is not None


def test_a_host_that_answers_again_is_what_it_says_it_is() -> None:
    away = apply(both_up(), events.HostLost(time=90.0, host="nas", cause="no answer"))
    back = apply(away, sampled("nas", "running", time=99.0))
    ended = apply(away, sampled("nas", "stopped", time=99.0))
    assert [state.hosts[1].state for state in (away, back, ended)] == [
        HostState.UNREACHABLE,
        HostState.UP,
        HostState.FAILED,
    ]
    assert ended.cluster_state is ClusterState.DEGRADED
    assert back.cluster_state is ClusterState.UP


def test_a_host_that_brings_its_ray_back_is_restarting_until_it_has() -> None:
    gone = apply(both_up(), sampled("nas", "restarting", time=60.0))
    back = apply(gone, sampled("nas", "running", time=66.0))
    never = apply(gone, sampled("nas", "stopped", time=66.0))
    assert [state.hosts[1].state for state in (gone, back, never)] == [
        HostState.RESTARTING,
        HostState.UP,
        HostState.FAILED,
    ]
    assert gone.log[-1].level is Level.WARNING
    assert (gone.cluster_state, back.cluster_state) == (ClusterState.DEGRADED, ClusterState.UP)


def test_a_cluster_that_was_called_down_is_not_once_a_host_says_that_its_ray_runs() -> None:
    for start in (START, both_up()):
        down = apply(start, events.ClusterChanged(time=60.0, state=ClusterState.DOWN))
        silent = apply(down, sampled("nas", "none", time=61.0))
        one = apply(silent, sampled("mercer", "running", time=62.0))
        both = apply(one, sampled("nas", "running", time=63.0))
        states = [state.cluster_state for state in (silent, one, both)]
        assert states == [ClusterState.DOWN, ClusterState.DEGRADED, ClusterState.UP]


@pytest.mark.parametrize("word", [ClusterState.STARTING, ClusterState.STOPPING])
def test_what_is_being_done_to_a_cluster_is_shown_until_it_is_done(word: ClusterState) -> None:
    state = apply(START, events.ClusterChanged(time=60.0, state=word))
    assert apply(state, sampled("nas", "running", time=61.0)).cluster_state is word


def test_a_teardown_from_elsewhere_shows_as_soon_as_the_head_says_that_it_has_no_ray_of_ours_any_more() -> None:
    up = apply(both_up(), events.ClusterChanged(time=1.0, state=ClusterState.UP, head="mercer"))
    assert apply(up, sampled("nas", "none")).cluster_state is ClusterState.DEGRADED
    assert apply(up, sampled("mercer", "stopped")).cluster_state is ClusterState.DEGRADED, "it ended, and may be back"
    down = apply(up, sampled("mercer", "none"))
    assert down.cluster_state is ClusterState.DOWN
    mercer = down.host("mercer")
    assert mercer is not None
    assert mercer.state is HostState.READY
    assert down.log[-1].text == "cluster lab is down"


def test_what_still_runs_during_a_teardown_from_elsewhere_does_not_bring_the_cluster_back() -> None:
    up = apply(apply(both_up(), sampled("mercer", "running", epoch=7)), sampled("nas", "running", epoch=7))
    state = apply(up, sampled("mercer", "none"))
    for event in (
        sampled("nas", "running", epoch=7),
        sampled("nas", "restarting", epoch=7),
        events.ClusterChanged(time=51.0, state=ClusterState.DEGRADED, epoch=7),  # a look in the middle of it
        sampled("mercer", "stopped", epoch=7),
        sampled("mercer", "none"),
        sampled("nas", "starting", epoch=7),
        sampled("nas", "none"),
    ):
        state = apply(state, event)
        assert state.cluster_state is ClusterState.DOWN, event
    assert [line.text for line in state.log].count("cluster lab is down") == 1
    assert apply(state, sampled("mercer", "starting", epoch=8)).cluster_state is ClusterState.STARTING
    assert apply(state, sampled("nas", "starting", epoch=7)).cluster_state is ClusterState.STARTING, "anew"
    assert apply(state, sampled("mercer", "running", epoch=6)).cluster_state is ClusterState.DEGRADED, "another clock"


def test_a_host_that_this_teardown_did_not_reach_does_not_bring_the_cluster_back() -> None:
    state = apply(both_up(), sampled("mercer", "running", epoch=7))
    for word in (ClusterState.STOPPING, ClusterState.DOWN):
        state = apply(state, events.ClusterChanged(time=51.0, state=word))
    state = apply(state, sampled("mercer", "running", time=90.0, epoch=7))
    assert state.cluster_state is ClusterState.DOWN
    mercer = state.host("mercer")
    assert mercer is not None
    assert mercer.state is HostState.UP, "Ray runs there all the same"


def test_a_cluster_whose_hosts_were_only_out_of_reach_is_up_again_once_they_answer() -> None:
    state = apply(both_up(), sampled("mercer", "running", epoch=7))
    for host in ("mercer", "nas"):
        state = apply(state, events.HostLost(time=51.0, host=host, cause="it does not answer"))
    state = apply(state, events.ClusterChanged(time=52.0, state=ClusterState.DOWN))
    assert apply(state, sampled("mercer", "running", time=90.0, epoch=7)).cluster_state is ClusterState.DEGRADED


def test_a_run_that_said_its_last_word_is_not_called_lost_afterwards() -> None:
    finished = protocol.RunFinished(
        seq=2, time=200.0, steps=1, samples=64, final_loss=None, samples_per_second=64.0, checkpoint="/c"
    )
    state = run_of(started(), finished)
    later = events.RunChanged(time=300.0, run="text-1", job="text", state=RunState.LOST)
    assert apply(state, later) == state


@pytest.mark.parametrize("seen", [RunState.STARTING, RunState.RUNNING], ids=["here", "from another terminal"])
def test_a_run_that_failed_and_is_resumed_is_shown_from_its_first_event(seen: RunState) -> None:
    failed = protocol.RunFailed(seq=3, time=2.0, step=7, host="nas", cause="the power went")
    state = run_of(started(), step(1, seq=2), failed)
    state = apply(state, events.RunChanged(time=3.0, run="text-1", job="text", state=seen))
    state = run_of(started(), plan(2), step(1, seq=2), start=state)
    assert state.run is not None
    assert state.run.is_starting, "its coordinator has not said that it goes on: steps of before are no news"
    assert state.run.phases[-1].name == COORDINATOR
    resumed = protocol.RunResumed(seq=3, time=4.0, step=1, host="nas", checkpoint="c")
    state = run_of(resumed, step(2, seq=4), start=state)
    assert state.run is not None
    assert (state.run.state, state.run.step) == (RunState.RUNNING, 2)


def test_text_from_hosts_is_plain_in_the_log() -> None:
    failed = protocol.RunFailed(seq=2, time=2.0, step=7, host="nas", cause="\x1b[31mbad\x1b[0m\nthing")
    assert "\x1b" not in run_of(started(), failed).log[-1].text


def test_throughput_and_what_is_left_follow_the_recent_steps() -> None:
    run = run_of(started(), plan(), *(step(number, number + 2) for number in range(1, 11))).run
    assert run is not None
    assert run.samples_per_second == 64.0
    assert run.remaining_seconds == 90.0


def test_events_that_are_not_a_runs_history_any_more_are_replaced_by_those_that_are() -> None:
    before = run_of(started(), step(1, 2), step(2, 3))
    lost = protocol.HeadLost(seq=3, time=3.0, host="mercer", step=1, cause="no answer")
    assert run_of(lost, start=before) == before
    rewound = apply(before, events.RunRewound(run="text-1", seq=2))
    after = run_of(lost, start=rewound)
    assert after.run is not None
    assert after.run.last_seq == 3
    assert "mercer lost at step 1" in after.log[-1].text
    assert apply(before, events.RunRewound(run="another", seq=2)) == before


def saved(seq: int) -> protocol.CheckpointSaved:
    return protocol.CheckpointSaved(seq=seq, time=100.0 + seq, step=seq, path="p", host="mercer")


def joined(seq: int) -> protocol.WorkerJoined:
    return protocol.WorkerJoined(seq=seq, time=100.0 + seq, worker="nas/cpu", host="nas", device="cpu")


def test_of_checkpoints_in_a_row_the_log_shows_the_newest_so_that_they_crowd_out_nothing() -> None:
    state = run_of(started(), saved(2), saved(3), joined(4), *(saved(seq) for seq in range(5, 2 * LOG_LINES)))
    assert [line.text for line in state.log[-3:]] == [
        "checkpoint of step 3 saved on mercer",
        "nas is ready: cpu",
        f"checkpoint of step {2 * LOG_LINES - 1} saved on mercer",
    ]
    numbers = [line.number for line in state.log]
    assert numbers == sorted(set(numbers))


def test_what_a_busy_machine_does_again_and_again_is_one_line_with_a_count() -> None:
    def slow(seq: int, factor: float) -> protocol.WorkerSlow:
        return protocol.WorkerSlow(seq=seq, time=100.0 + seq, worker="nas/cpu", host="nas", step=seq, factor=factor)

    busy = [slow(3, 0.4), slow(4, 1.0), slow(6, 0.3), slow(7, 1.0), saved(9), slow(10, 0.5)]
    state = run_of(started(), plan(), *busy)
    assert [(line.text, line.count) for line in state.log[-3:]] == [
        ("nas is back at its usual speed", 2),
        ("checkpoint of step 9 saved on mercer", 1),
        ("nas slowed to ×0.50", 3),
    ]
    numbers = [line.number for line in state.log]
    assert numbers == sorted(set(numbers))
    assert run_of(slow(500, 0.5), start=state).log[-1].count == 1, "minutes later it is news"


def test_looking_again_at_hosts_that_are_up_neither_changes_nor_tells_them_again() -> None:
    state = run_of(started(), plan(), step(1, 3), start=both_up())
    again = state
    for event in (
        events.HostChanged(time=9.0, host="nas", state=HostState.CONNECTING),
        events.HostChanged(time=9.0, host="nas", state=HostState.UP, detail="ran already"),
    ):
        again = apply(again, event)
    assert [host.state for host in again.hosts] == [HostState.TRAINING, HostState.TRAINING]
    assert again.log == state.log


def test_a_host_that_was_away_is_told_to_be_back() -> None:
    state = apply(both_up(), events.HostLost(time=90.0, host="nas", cause="no answer", retry_s=4.0))
    assert state.hosts[1].next_try == 94.0
    state = apply(state, sampled("nas", "running", time=99.0))
    assert state.log[-1].text == "nas is back"
    assert state.hosts[1].next_try is None


def test_a_host_is_not_told_to_be_back_in_a_run_that_goes_on_without_it() -> None:
    lost = protocol.WorkerLost(seq=9, time=80.0, worker="nas/cpu", host="nas", device="cpu", step=1, cause="no answer")
    state = run_of(started(), plan(), step(1, 3), lost, start=both_up())
    state = apply(state, events.HostLost(time=90.0, host="nas", cause="no answer", retry_s=4.0))
    state = apply(state, sampled("nas", "running", time=99.0))
    assert state.hosts[1].state is HostState.PAUSED
    assert state.log[-1].text == "nas is back in the cluster, and its worker not yet in the run"


def test_a_host_that_was_not_fit_is_not_ready_after_its_connection_was_lost() -> None:
    unfit = events.HostChanged(time=1.0, host="nas", state=HostState.UNFIT, detail="no torch", hint="press i")
    away = events.HostLost(time=2.0, host="nas", cause="no answer")
    state = apply(apply(START, unfit), away)
    for event in (sampled("nas", "none", time=3.0), events.HostChanged(time=3.0, host="nas", state=HostState.IDLE)):
        back = apply(state, event)
        assert (back.hosts[1].state, back.hosts[1].detail, back.hosts[1].hint) == (
            HostState.UNFIT,
            "no torch",
            "press i",
        )
        assert back.log[-1].text == "nas is unfit: no torch -> press i"


def test_after_the_clock_of_the_head_was_set_back_the_speed_is_that_of_the_steps_themselves() -> None:
    steps = [replace(step(number, number + 2), time=float(number)) for number in range(1, 4)]
    state = run_of(started(), plan(), replace(steps[0], time=500.0), *steps[1:])
    assert state.run is not None
    assert (state.run.interval, state.run.samples_per_second) == (1.0, 64.0)
    assert state.run.remaining_seconds == 97.0


def test_the_times_of_listed_runs_are_on_the_laptops_clock() -> None:
    known = protocol.RunSummary(
        id="text-1", job="text", state=RunState.STOPPED, step=3, loss=1.0, started=10.0, ended=20.0, host="nas"
    )
    state = apply(apply(START, sampled("nas", "none", time=301.0)), events.RunsListed(time=302.0, runs=(known,)))
    assert state.runs is not None
    assert (state.runs[0].started, state.runs[0].ended) == (310.0, 320.0)


def test_a_host_that_is_only_a_server_is_not_missed_by_the_run() -> None:
    only = protocol.PlanMade(seq=2, time=100.0, strategy="sync", shares=(share("mercer", 64),))
    state = run_of(started(), only, step(1, 3), start=both_up())
    assert [host.state for host in state.hosts] == [HostState.TRAINING, HostState.UP]
    assert verdict(state, "", 100.0, DARK).plain == "● training 1/1"


def taken_over(seq: int, checkpoint: str = "") -> protocol.RunResumed:
    return protocol.RunResumed(seq=seq, time=109.0, step=2, host="mercer", checkpoint=checkpoint)


@pytest.mark.parametrize(
    "lost",
    [
        events.RunProgressed(run="text-1", event=protocol.CoordinatorLost(seq=5, time=105.0, host="mercer", step=2)),
        events.RunChanged(time=105.0, run="text-1", job="", state=RunState.STARTING),  # its overseer is gone as well
    ],
)
def test_while_a_lost_coordinator_is_replaced_the_header_says_so(lost: events.Event) -> None:
    train = run_of(started(), plan(), step(1, 3), step(2, 4), start=both_up())
    state = apply(train, lost)
    assert "text-1 recovering: new coordinator 3 s" in header_line(state, "", 108.0, None, 120, DARK).plain
    assert [line.plain for line in phases_lines(state, 108.0, 100, DARK)] == [
        "◔ new coordinator          3 s  it asks the workers where they stand"
    ]
    seq = state.run.last_seq if state.run is not None else 0
    state = run_of(taken_over(seq + 1), start=state)
    assert state.run is not None
    assert (state.run.state, state.run.is_starting, state.run.superseded) == (RunState.RUNNING, False, None)
    assert [host.state for host in state.hosts] == [HostState.TRAINING, HostState.TRAINING]


def lost(seq: int, host: str, cause: str, retry_s: float | None = None) -> protocol.WorkerLost:
    return protocol.WorkerLost(
        seq=seq, time=100.0 + seq, worker=f"{host}/cpu", host=host, device="cpu", step=1, cause=cause, retry_s=retry_s
    )


def test_drained_paused_and_benched_hosts_have_their_own_states_and_a_drained_one_is_no_fault() -> None:
    before = (started(), plan(), step(1, 3))
    drained = run_of(*before, lost(4, "nas", "drained"), start=both_up())
    paused = run_of(*before, lost(4, "nas", "killed", 16.0), start=both_up())
    shares = (share("mercer", 64), share("nas", 0))
    rested = protocol.Rebalanced(seq=4, time=101.0, step=1, shares=shares, reason="the devices' speeds changed")
    benched = run_of(*before, rested, start=both_up())
    assert [state.hosts[1].state for state in (drained, paused, benched)] == [
        HostState.DRAINED,
        HostState.PAUSED,
        HostState.BENCHED,
    ]
    assert paused.hosts[1].next_try == 104.0 + 16.0
    assert drained.run is not None
    assert drained.run.faults == ()
    assert "lost" not in drained.log[-1].text
    for state in (drained, paused):
        back = run_of(joined(5), start=state)
        back = run_of(
            protocol.Rebalanced(seq=6, time=1.0, step=2, shares=(share("mercer", 48), share("nas", 16))), start=back
        )
        assert back.hosts[1].state is HostState.TRAINING
        assert back.hosts_able == back.hosts_training == 2


def test_the_time_for_which_a_run_was_stopped_does_not_count() -> None:
    stopped = protocol.RunFinished(
        seq=4, time=110.0, steps=1, samples=64, final_loss=1.0, samples_per_second=1.0, checkpoint="/c", stopped=True
    )
    before = run_of(started(), plan(), step(1, 3), stopped)
    assert before.run is not None
    assert before.run.seconds == 10.0
    reopened = apply(before, events.RunChanged(time=7000.0, run="text-1", job="text", state=RunState.STARTING))
    resumed = protocol.RunResumed(seq=4, time=7101.0, step=1, host="mercer", checkpoint="c")
    last = protocol.RunFinished(
        seq=6, time=7111.0, steps=2, samples=64, final_loss=1.0, samples_per_second=1.0, checkpoint="/c"
    )
    after = run_of(started(), plan(), step(1, 3), resumed, step(2, 5), last, start=reopened)
    assert after.run is not None
    assert after.run.seconds == 11.0
    told = [line.text for line in after.log]
    assert told.count("text: 10 parameters, 100 steps") == 1
    assert [text for text in told if "stopped after" in text or "resumed on" in text or "finished after" in text] == [
        "text-1 stopped after 1 step, 1 samples/s",
        "resumed on mercer after step 1",
        "text-1 finished after 2 steps, 1 samples/s",
    ]


def test_the_listed_runs_are_as_the_run_on_the_screen_stands_now() -> None:
    listed = apply(both_up(), events.RunsListed(time=90.0, runs=()))
    begun = apply(listed, events.RunChanged(time=95.0, run="text-1", job="text", state=RunState.STARTING))
    assert [(run.id, run.state) for run in begun.listed_runs or ()] == [("text-1", RunState.STARTING)]
    on = run_of(started(), plan(), step(1, 3, loss=2.0), start=begun)
    assert [(run.state, run.step, run.loss, run.iterations) for run in on.listed_runs or ()] == [
        (RunState.RUNNING, 1, 2.0, 100)
    ]
    failed = protocol.RunFailed(seq=2, time=97.0, step=0, host="mercer", cause="no memory", hint="")
    over = run_of(started(), failed, start=begun)
    assert [(run.state, run.ended) for run in over.listed_runs or ()] == [(RunState.FAILED, 97.0)], "before a step"


def test_a_cluster_none_of_whose_hosts_answers_is_not_called_down() -> None:
    state = START
    for host in ("mercer", "nas"):
        assert not state.is_silent
        state = apply(state, events.HostChanged(time=1.0, host=host, state=HostState.UNREACHABLE))
    assert state.is_silent
    assert status_document(state, ())["cluster"]["state"] == "unknown"
    assert verdict(state, "", 100.0, DARK).plain == "✕ none answers"


def test_a_user_is_called_when_a_run_ends_and_when_a_host_refuses_and_for_nothing_else() -> None:
    on = run_of(started(), plan(), step(1, 3), start=both_up())
    failed = run_of(
        protocol.RunFailed(seq=4, time=104.0, step=1, host="mercer", cause="out of memory", hint=""), start=on
    )
    assert call_for(on, failed) == (Level.BAD, "text-1 failed after step 1: out of memory")
    assert call_for(failed, failed) is None
    assert call_for(both_up(), failed) is None, "it was over when it was first seen"
    assert call_for(both_up(), on) is None
    seen = apply(on, events.HostChanged(time=1.0, host="nas", state=HostState.READY))
    refused = apply(seen, events.HostChanged(time=2.0, host="nas", state=HostState.REFUSED, detail="its key CHANGED"))
    assert call_for(seen, refused) == (Level.BAD, "nas needs a hand: its key CHANGED")


def test_a_record_that_is_read_with_few_of_its_steps_gives_the_same_figures() -> None:
    events_of = [started(), plan(), *(step(number, number + 2) for number in range(1, 1001))]
    few = [event for event in events_of if not isinstance(event, protocol.Step) or event.step % 10 == 1]
    whole, thin = run_of(*events_of).run, run_of(*few).run
    assert whole is not None
    assert thin is not None
    assert (thin.samples, thin.step) == (991 * 64, 991)
    assert (thin.interval, whole.interval) == (1.0, 1.0)
    assert thin.losses[::10] == whole.losses[::100]


def test_of_a_run_that_is_attached_to_nothing_old_is_the_present_until_its_history_is_read() -> None:
    attached = events.RunChanged(time=500.0, run="text-1", job="text", state=RunState.RUNNING, detail="attached")
    state = apply(apply(both_up(), attached), events.RunBehind(run="text-1", seq=42, step=39))
    assert state.run is not None
    assert state.run.behind is not None
    gone = lost(3, "nas", "its worker ended")
    state = run_of(started(), plan(), gone, *(step(number, number + 3) for number in range(1, 39)), start=state)
    assert state.run is not None
    assert [host.state for host in state.hosts] == [HostState.UP, HostState.UP]
    assert [(phase.name, phase.began) for phase in state.run.phases] == [(WORKERS, 100.0), (FIRST_STEP, 100.0)]
    shown = state.present.run
    assert shown is not None
    assert (shown.step, shown.faults, shown.workers, shown.recent, shown.is_starting) == (38, (), (), (), False)
    assert "nas" not in metrics(state, 500.0).partition("run_state")[2]

    state = run_of(step(39, 42), start=state)
    assert state.present is state
    assert [host.state for host in state.hosts] == [HostState.TRAINING, HostState.PAUSED]
    again = apply(state, events.RunBehind(run="text-1", seq=42, step=39))
    assert again is state


def said(state: State) -> list[tuple[Level, str]]:
    return [(line.level, line.text) for line in state.log]


def after(*happened: events.Event, start: State = START) -> State:
    for event in happened:
        start = apply(start, event)
    return start


def test_a_notice_names_its_host_where_it_has_one() -> None:
    state = after(
        events.Notice(time=1.0, level=Level.WARNING, text="the laptop slept"),
        events.Notice(time=2.0, level=Level.BAD, text="no room", host="nas"),
    )
    assert said(state) == [(Level.WARNING, "the laptop slept"), (Level.BAD, "nas: no room")]
    assert [line.number for line in state.log] == [1, 2]


def test_the_log_keeps_its_newest_lines_cut_to_a_length_and_counts_them_all() -> None:
    lines = [
        events.Notice(time=1.0, level=Level.INFO, text=f"{number} " + "x" * 3000) for number in range(LOG_LINES + 3)
    ]
    state = after(*lines)
    assert len(state.log) == LOG_LINES
    assert (state.log[0].number, state.log[-1].number) == (4, LOG_LINES + 3)
    assert {len(line.text) for line in state.log} == {WHOLE}


def test_a_host_whose_ray_runs_takes_part_in_a_run_that_is_on_and_in_no_other() -> None:
    on = run_of(started(), plan(), step(1, 3))
    state = after(sampled("mercer", "running"), start=on)
    assert [host.state for host in state.hosts] == [HostState.TRAINING, HostState.UNKNOWN]
    failed = protocol.RunFailed(seq=4, time=9.0, step=1, host="nas", cause="x", hint="", detail="")
    over = run_of(started(), plan(), step(1, 3), failed)
    assert after(sampled("mercer", "running"), start=over).hosts[0].state is HostState.UP


def test_the_start_of_a_cluster_has_its_own_phase_with_an_end() -> None:
    def changed(state: ClusterState, time: float, head: str = "") -> events.ClusterChanged:
        return events.ClusterChanged(time=time, state=state, head=head or None)

    starting = after(changed(ClusterState.STARTING, 5.0))
    assert starting.cluster_phase is not None
    assert (starting.cluster_phase.began, starting.cluster_phase.ended) == (5.0, None)
    again = after(changed(ClusterState.STARTING, 6.0), start=starting)
    assert again.cluster_phase is not None
    assert again.cluster_phase.ended == 6.0
    up = after(changed(ClusterState.UP, 8.0, "mercer"), start=starting)
    assert up.cluster_phase is not None
    assert (up.cluster_phase.began, up.cluster_phase.ended) == (5.0, 8.0)
    later = after(changed(ClusterState.DEGRADED, 20.0, "mercer"), start=up)
    assert later.cluster_phase == up.cluster_phase, "it ended once"
    assert after(changed(ClusterState.UP, 3.0)).cluster_phase is None
    assert said(later) == [
        (Level.INFO, "cluster lab is starting"),
        (Level.GOOD, "cluster lab is up, head mercer"),
        (Level.WARNING, "cluster lab is degraded, head mercer"),
    ]


def changed(state: RunState, time: float = 50.0, run: str = "text-1", detail: str = "") -> events.RunChanged:
    return events.RunChanged(time=time, run=run, job="text", state=state, detail=detail)


@pytest.mark.parametrize(
    ("state", "detail", "line"),
    [
        (RunState.STARTING, "", (Level.INFO, "text-1 is starting")),
        (RunState.RUNNING, "on mercer", (Level.INFO, "text-1 is running: on mercer")),
        (RunState.LOST, "no answer", (Level.BAD, "text-1 is lost after step 7: no answer")),
        (RunState.FAILED, "", (Level.BAD, "text-1 failed after step 7")),
        (RunState.STOPPED, "", (Level.INFO, "text-1 stopped at step 7")),
        (RunState.FINISHED, "", (Level.INFO, "text-1 finished at step 7")),
    ],
)
def test_what_became_of_a_run_is_one_line(state: RunState, detail: str, line: tuple[Level, str]) -> None:
    before = run_of(started(), plan(), step(7, 3)) if state.final else START
    now = after(changed(state, detail=detail), start=before)
    assert said(now)[-1] == line
    assert now.run is not None
    assert (now.run.state, now.run.ended) == (state, 50.0 if state.final else None)


def test_a_run_that_has_begun_since_runs_were_listed_is_among_them_once() -> None:
    known = protocol.RunSummary(id="old", job="text", state=RunState.FINISHED, step=3, loss=1.0, started=1.0, seq=40)
    listed = after(events.RunsListed(time=1.0, runs=(known,)), start=both_up())
    state = after(changed(RunState.STARTING), start=listed)
    assert [run.id for run in state.runs or ()] == ["old", "text-1"]
    new = (state.runs or ())[-1]
    assert (new.state, new.step, new.started, new.host, new.job) == (RunState.STARTING, 0, 50.0, "mercer", "text")
    back = after(changed(RunState.STARTING, run="old"), start=listed)
    assert [run.id for run in back.runs or ()] == ["old"]
    assert back.run is not None
    assert back.run.history == 40, "its start is read after the last event of what it was"


def test_an_event_that_was_told_before_is_shown_and_not_told_again() -> None:
    once = run_of(started(), plan(), lost(3, "nas", "killed"))
    again = run_of(started(), plan(), lost(3, "nas", "killed"), start=replace(once, run=None))
    assert again.log == once.log
    assert again.run == once.run
    another = run_of(lost(4, "nas", "killed once more"), start=again)
    assert len(another.log) == len(once.log) + 1


def test_the_history_of_a_run_that_is_resumed_here_is_not_told_again() -> None:
    state = apply(START, events.RunChanged(time=50.0, run="text-1", job="text", state=RunState.STARTING, history=4))
    said = len(state.log)
    state = run_of(started(), plan(), lost(3, "nas", "killed"), start=state)
    assert len(state.log) == said
    assert state.run is not None
    assert len(state.run.faults) == 1, "it is known all the same"
    resumed = protocol.RunResumed(seq=4, time=60.0, step=1, host="mercer", checkpoint="/c")
    state = run_of(resumed, lost(5, "nas", "killed"), start=state)
    assert len(state.log) == said + 2


def test_a_run_that_ends_while_its_history_is_read_is_shown_as_far_as_it_is_known() -> None:
    reading = apply(run_of(started(), plan(), step(1, 3)), events.RunBehind(run="text-1", seq=42, step=39))
    assert reading.present.run != reading.run
    ended = events.RunChanged(time=500.0, run="text-1", job="text", state=RunState.STOPPED, detail="taken down")
    failed = protocol.RunFailed(seq=40, time=500.0, step=1, host="nas", cause="the end")
    for state in (apply(reading, ended), run_of(failed, start=reading)):
        assert state.present is state
