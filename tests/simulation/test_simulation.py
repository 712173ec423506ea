"""Random faults on a simulated clock: exact weights, every sample once, no hang, everybody back at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from remote_agent.planning.cuts import least_seconds
from remote_agent.training.checkpoint import checkpoint, saver
from remote_agent.training.coordinator.plan.measurements import Measurements
from remote_agent.training.data.record import SliceRecord
from remote_agent.training.deadlines import SLOW_DISK_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.rpc import Ref
from tests.simulation import product, world
from tests.simulation.cluster import Promise, SimulatedActor
from tests.simulation.planted import BUGS, heartbeat_fails
from tests.simulation.world import WAYS, Fault, Outcome, many, simulate

SEEDS = 20
"""Schedules of each strategy, 200 together: ``python -m benchmarks.simulation --schedules 10000`` searches further."""

FOUND = [
    ("pipeline", 3893),  # a stage was lost before the model was cut
    ("sync", 1178),  # shards were lost more often than the run would bear, within seconds
    ("local_sgd_overlap", 4862),
    (
        "local_sgd",
        108073,
    ),  # a worker that was stopped received three steps at once, and waited for one of them for good
    ("local_sgd", 384),  # a host was drained and added again just before a coordinator ended that left no checkpoint
    ("sync", 781),  # a coordinator ended that left no checkpoint, and a host was away
    ("local_sgd", 5841),  # the last worker was lost in the first step, a part of which the shards had made
]


@pytest.fixture(autouse=True, scope="module")
def seldom_collected() -> Iterator[None]:
    with many():
        yield


def said(outcome: Outcome) -> str:
    faults, events = ("\n".join(map(str, each)) for each in (outcome.faults, outcome.events))
    again = f"python -m benchmarks.simulation --strategy {outcome.way} --seed {outcome.seed}"
    return f"{outcome.wrong}\n{faults}\n{events}\nonce more: {again}"


@pytest.mark.parametrize("way", WAYS)
def test_whatever_happens_to_hosts_each_sample_counts_once_and_all_train_at_the_end(way: str) -> None:
    for seed in range(SEEDS):
        outcome = simulate(seed, None, way)
        assert not outcome.wrong, said(outcome)


@pytest.mark.parametrize(("way", "seed"), FOUND)
def test_what_one_of_ten_thousand_schedules_found_stays_mended(way: str, seed: int) -> None:
    outcome = simulate(seed, None, way)
    assert not outcome.wrong, said(outcome)


def test_a_seed_gives_the_same_run_each_time() -> None:
    first = simulate(3, None, "sync")
    assert len(first.events) > 3
    assert simulate(3, None, "sync") == first
    assert simulate(4, None, "sync").events != first.events


@pytest.mark.parametrize("way", WAYS)
def test_a_run_without_faults_loses_nobody(way: str) -> None:
    outcome = simulate(1, [], way)
    assert not outcome.wrong, said(outcome)
    assert not any("WorkerLost" in event or "ServerLost" in event for event in outcome.events)


@pytest.mark.parametrize("name", BUGS)
def test_it_finds_a_bug_that_is_put_back(name: str) -> None:
    bug = BUGS[name]
    assert bug.found(bug.near), f"no schedule of {bug.way} ends with {bug.wanted!r}"


def test_a_heartbeat_that_ends_with_an_error_ends_the_run() -> None:
    with heartbeat_fails():
        assert "heartbeat ended" in simulate(0, None, "sync").wrong


def test_a_worker_whose_start_fails_of_an_unexpected_error_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, calls = product.measured, list[int]()

    def odd(*given: Any, **named: Any) -> Measurements:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("one that nobody expected")
        return measured(*given, **named)

    monkeypatch.setattr(product, "measured", odd)
    outcome = simulate(1, [Fault(4.0, "drain", "b", 3.0)])
    assert not outcome.wrong, said(outcome)
    assert len(calls) > 2, "it was tried again"


def test_a_worker_that_fails_again_on_its_way_back_is_told_of_with_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, calls = product.measured, list[int]()

    def broken(*given: Any, **named: Any) -> Measurements:
        calls.append(1)
        if 2 <= len(calls) <= 4:
            raise ValueError("no driver")
        return measured(*given, **named)

    monkeypatch.setattr(product, "measured", broken)
    outcome = simulate(1, [Fault(4.0, "drain", "b", 3.0)])
    assert not outcome.wrong, said(outcome)
    told = [event for event in outcome.events if "WorkerLost" in event and "drained" not in event]
    assert len(told) == 2
    assert all(f"'retry_s': {pause}.0," in event for event, pause in zip(told, (2, 4), strict=True))


@pytest.mark.parametrize("part", ["the record", "the checkpoint"])
def test_no_step_waits_for_a_disk_that_takes_10_s(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def slow(*_: object) -> None:
        saver.time.sleep(10.0)  # of the simulated clock

    if part == "the record":
        monkeypatch.setattr(SliceRecord, "flush", slow)
    else:
        monkeypatch.setattr(checkpoint, "prune", slow)
    outcome = simulate(1, [Fault(40.0, "slow", "b", 0.1)], "pipeline")  # it ends once it is well after the last fault
    assert not outcome.wrong, said(outcome)
    saved = [event for event in outcome.events if "CheckpointSaved" in event]
    assert len(saved) == 4, "each takes 10 s, of 40 s"
    assert outcome.stall_s < 1.5 + SLOW_DISK_S, "a step takes 1.2 s"


# --- Bugs that it has found ------------------------------------------------------------------------------------------


def test_a_step_that_the_only_worker_had_sent_in_part_is_made_again_from_a_checkpoint() -> None:
    alone = [Fault(4.0, "drain", "a", 12.0), Fault(4.0, "drain", "b", 12.0), Fault(7.0, "tear", "c", 0.0)]
    outcomes = [simulate(seed, alone, "sync") for seed in range(4)]
    assert not any(outcome.wrong for outcome in outcomes), said(next(each for each in outcomes if each.wrong))
    assert any("a part of step" in event for outcome in outcomes for event in outcome.events)


def test_a_worker_that_stops_for_good_is_started_again_where_its_host_lives() -> None:
    outcome = simulate(0, [Fault(4.0, "hang", "c", 0.1)], "sync")
    assert not outcome.wrong, said(outcome)
    assert any("WorkerLost" in event for event in outcome.events), "it stopped after its host was added again"


@pytest.mark.parametrize("at", [0.3, 1.0, 1.6])
@pytest.mark.parametrize("way", ["sync", "pipeline"])
def test_processes_that_stop_for_good_before_the_first_step_are_started_again(
    monkeypatch: pytest.MonkeyPatch, way: str, at: float
) -> None:
    monkeypatch.setattr(world, "START_S", 320.0)
    outcome = simulate(0, [Fault(at, "freeze", "b", 400.0)], way)
    assert not outcome.wrong, said(outcome)
    assert not any("ByHand" in event for event in outcome.events), said(outcome)


@pytest.mark.parametrize("seed", range(4))
def test_a_spare_process_that_has_stopped_as_well_takes_no_lost_shards_place(seed: int) -> None:
    outcome = simulate(seed, [Fault(5.0, "freeze", "a", 60.0)], "sync")
    assert not outcome.wrong, said(outcome)


def test_a_worker_that_stops_while_a_shard_is_restored_holds_nothing_up() -> None:
    for seed in range(8):
        outcome = simulate(seed, [Fault(4.0, "hang", "c", 3.0), Fault(4.3, "shard", "a", 0.0)], "sync")
        assert not outcome.wrong, said(outcome)


@pytest.mark.parametrize("way", ["sync", "local_sgd", "sync_pairs"])
def test_the_shard_of_a_drained_host_moves_and_the_host_can_be_switched_off(way: str) -> None:
    faults = [Fault(8.0, "drain", "b", 20.0), Fault(18.0, "power", "b", 3.0)]
    outcomes = [simulate(seed, faults, way) for seed in (0, 1)]
    for outcome in outcomes:
        assert not outcome.wrong, said(outcome)
        assert not any("ServerLost" in event for event in outcome.events), said(outcome)
    moved = [event for event in outcomes[0].events if "RunResumed" in event]
    assert len(moved) == 1, "with this seed b has a shard"
    assert "'cause': 'b is drained'" in moved[0]
    assert "1 steps are made again" in moved[0]
    assert "b's shard is on a now" in moved[0]


@pytest.mark.parametrize("kind", ["deaf", "mute"])
@pytest.mark.parametrize("way", ["sync", "allreduce", "pipeline"])
def test_a_link_that_works_one_way_only_is_found_out_as_one_that_is_cut(way: str, kind: str) -> None:
    outcome = simulate(2, [Fault(4.0, kind, "b", 8.0)], way)
    assert not outcome.wrong, said(outcome)
    assert any("WorkerLost" in event for event in outcome.events)
    assert outcome.stall_s < 8


@pytest.mark.parametrize(
    ("way", "at"),
    [
        ("sync", 0.3),
        ("allreduce", 0.3),
        ("allreduce", 6.0),
        ("pipeline", 6.0),
        ("local_sgd_overlap", 6.0),
    ],
)
def test_a_run_goes_on_by_itself_when_its_coordinator_ends_before_the_first_step_and_later(way: str, at: float) -> None:
    outcome = simulate(0, [Fault(at, "coordinator", "a", 0.0)], way)
    assert not outcome.wrong, said(outcome)
    assert not any("ByHand" in event for event in outcome.events), said(outcome)
    resumed = [event for event in outcome.events if "RunResumed" in event]
    assert len(resumed) == 1, "the coordinator was lost while the run was under way"


def test_a_coordinator_that_is_stopped_for_a_while_loses_nobody() -> None:
    for seed in range(4):
        outcome = simulate(seed, [Fault(6.0, "pause", "a", 6.0)], "sync")
        assert not outcome.wrong, said(outcome)
        assert not any("WorkerLost" in event or "ServerLost" in event for event in outcome.events), said(outcome)


@pytest.mark.parametrize("way", ["sync", "local_sgd", "allreduce", "pipeline"])
def test_what_a_host_does_that_wakes_after_it_was_given_up_counts_for_nothing(way: str) -> None:
    outcome = simulate(1, [Fault(4.0, "sleep", "b", 11.0)], way)
    assert not outcome.wrong, said(outcome)
    assert any("WorkerLost" in event for event in outcome.events)
    assert outcome.stall_s < 8


@pytest.mark.parametrize("way", ["sync", "local_sgd", "allreduce", "pipeline"])
def test_a_run_whose_head_sleeps_goes_on_when_it_wakes(way: str) -> None:
    outcome = simulate(1, [Fault(4.0, "sleep", "a", 11.0)], way)
    assert not outcome.wrong, said(outcome)
    assert 10 < outcome.stall_s < 18


@pytest.mark.parametrize("way", ["sync", "local_sgd"])
def test_of_two_hosts_that_do_not_reach_each_other_none_leaves_where_there_are_shards(way: str) -> None:
    outcomes = [simulate(seed, [Fault(6.0, "apart", "b", 60.0)], way) for seed in range(6)]
    for outcome in outcomes:
        assert not outcome.wrong, said(outcome)
        assert outcome.stall_s < 10, said(outcome)
        assert not any("WorkerLost" in event for event in outcome.events), said(outcome)
    moved = [event for outcome in outcomes for event in outcome.events if "ServerLost" in event]
    assert moved, "of some, a shard is on one of the two"
    assert all("b does not reach c, though all answer the head" in event for event in moved)


@pytest.mark.parametrize("seconds", [12.0, 90.0])
@pytest.mark.parametrize("way", ["allreduce", "allreduce_pairs", "pipeline"])
def test_of_two_hosts_that_do_not_reach_each_other_one_leaves_where_workers_exchange_directly(
    way: str, seconds: float
) -> None:
    for seed in range(3):
        outcome = simulate(seed, [Fault(4.0, "apart", "b", seconds)], way)
        assert not outcome.wrong, said(outcome)
        assert outcome.stall_s < 15, said(outcome)
        lost = next(event for event in outcome.events if "WorkerLost" in event)
        assert "'c/cpu" in lost, said(outcome)
        assert "c does not reach b, though all answer the head" in lost


def test_shards_that_get_a_checkpoints_state_late_serve_no_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SimulatedActor.call_in

    def late(actor: SimulatedActor, group: str, method: str, *arguments: Any) -> Any:
        """As Ray has it where order is free: what a call needs is fetched first, and other calls are carried out."""
        if method != "restore":
            return real(actor, group, method, *arguments)
        kernel, promise = actor._kernel, Promise(actor._kernel)

        def fetch() -> None:
            kernel.wait(kernel.now + 1.0)
            promise.set(rpc.get(real(actor, group, method, *arguments), 60.0))

        kernel.spawn("fetch", fetch, None)
        return Ref(promise)

    monkeypatch.setattr(SimulatedActor, "call_in", late)
    everything = [Fault(12.0, kind, host, 0.0) for host in "abc" for kind in ("worker", "shard")]
    way = replace(WAYS["sync"], settings={"strategy": "sync", "checkpoint_every": 3})
    outcomes = [simulate(seed, everything, way) for seed in range(3)]
    for outcome in outcomes:
        assert not outcome.wrong, said(outcome)
        assert not any("older state" in event for event in outcome.events), said(outcome)
    resumed = [event for outcome in outcomes for event in outcome.events if "RunResumed" in event]
    assert any("'checkpoint': '/" in event for event in resumed), said(outcomes[0])


def test_a_run_that_asked_for_more_shards_than_hosts_are_left_goes_on_with_fewer() -> None:
    both = [Fault(0.1, "power", "b", 12.0), Fault(0.1, "power", "c", 12.0)]
    outcomes = [simulate(seed, both, "sync") for seed in range(3)]
    for outcome in outcomes:
        assert not outcome.wrong, said(outcome)
    told = "shards=2, but the run has only a now: it goes on with 1"
    assert any(told in event for outcome in outcomes for event in outcome.events if "PlanMade" in event)


def test_a_new_coordinator_does_not_count_on_a_worker_that_the_killed_one_had_set_aside() -> None:
    cut = Fault(1.73, "cut", "b", 3.48)
    outcome = simulate(26256, [cut, Fault(3.96, "worker", "c", 0.0), Fault(4.08, "coordinator", "a", 0.0)], "sync")
    assert not outcome.wrong, said(outcome)
    assert outcome.stall_s < 15


# --- A pipeline, which is cut anew -----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", "abc")
def test_a_connection_between_two_stages_that_breaks_holds_up_no_third_one(host: str) -> None:
    outcome = simulate(1, [Fault(4.0, "reset", host, 0.0)], "pipeline")
    assert not outcome.wrong, said(outcome)
    assert outcome.stall_s < 8


@pytest.mark.parametrize("kind", ["worker", "cut", "power", "freeze"])
def test_a_lost_stage_costs_no_other_workers_process(kind: str) -> None:
    for seed in range(3):
        outcome = simulate(seed, [Fault(3.3, kind, "b", 8.0)], "pipeline")
        assert not outcome.wrong, said(outcome)
        joined = [event for event in outcome.events if "WorkerJoined" in event]
        assert len(joined) == 4, "the lost one alone is started again"
        assert outcome.stall_s < 6


def test_all_is_measured_again_for_a_host_whose_links_are_not_known() -> None:
    outcome = simulate(1, [Fault(0.1, "power", "c", 8.0)], "pipeline")
    assert not outcome.wrong, said(outcome)
    resumed = next(number for number, event in enumerate(outcome.events) if "c/cpu is there again" in event)
    joined = [event.split("'worker': ")[1][:7] for event in outcome.events[resumed:] if "WorkerJoined" in event]
    assert joined == ["'a/cpu'", "'b/cpu'", "'c/cpu'"]


def test_two_stages_that_are_lost_one_after_the_other_leave_the_third_one_to_go_on() -> None:
    for seed in range(3):
        lost = [Fault(3.3, "worker", "b", 0.0), Fault(3.7, "cut", "c", 6.0)]
        outcome = simulate(seed, lost, "pipeline")
        assert not outcome.wrong, said(outcome)
        _, alone = steps_after(outcome, 3.7, "PlanMade")
        assert "Stage(worker='a/cpu', first=0, last=4" in alone
        assert outcome.stall_s < 8


def test_a_stage_that_dies_while_the_others_connect_is_not_waited_for() -> None:
    killed = [Fault(2.9, "worker", "c", 0.0), Fault(4.5, "tear", "c", 0.0)]
    outcomes = [simulate(seed, killed, "pipeline") for seed in range(6)]
    assert not any(outcome.wrong for outcome in outcomes), said(next(each for each in outcomes if each.wrong))
    assert max(outcome.stall_s for outcome in outcomes) < 15


def test_a_drained_host_gives_its_layers_to_the_others_and_gets_some_again() -> None:
    outcome = simulate(1, [Fault(4.0, "drain", "b", 8.0)], "pipeline")
    assert not outcome.wrong, said(outcome)
    plans = [re.findall(r"([abc])/cpu: blocks? ", event) for event in outcome.events if "PlanMade" in event]
    assert [sorted(plan) for plan in plans] == [["a", "b", "c"], ["a", "c"], ["a", "b", "c"]]
    assert outcome.stall_s < 8


SELDOM = replace(WAYS["pipeline"], settings={"strategy": "pipeline", "micro_batch": 5, "checkpoint_every": 60})
"""Checkpoints are so far apart that none comes by chance."""


LATE = Fault(120.0, "slow", "a", 0.1)
"""A run ends soon after its last fault."""


def steps_after(outcome: Outcome, since_s: float, wanted: str) -> tuple[int, str]:
    """Steps from a time to the first event with these words, and that event."""
    since = [event for event in outcome.events if float(event.split()[0]) > since_s]
    first = next(number for number, event in enumerate(since) if wanted in event)
    return sum(" Step {" in event for event in since[:first]), since[first]


def test_a_stage_that_becomes_slow_is_named_within_10_steps() -> None:
    outcome = simulate(1, [Fault(40.0, "slow", "b", 30.0), LATE], SELDOM)
    assert not outcome.wrong, said(outcome)
    named, slow = steps_after(outcome, 40.0, "WorkerSlow")
    assert named <= 10
    assert "'worker': 'b/cpu'" in slow
    assert "'factor': 0.25" in slow or "'factor': 0.2499" in slow
    assert "'factor': 1.0" in steps_after(outcome, 70.0, "WorkerSlow")[1]


def test_shares_follow_a_slower_device_within_30_steps() -> None:
    outcome = simulate(1, [Fault(40.0, "throttle", "b", 0.0), LATE], "sync")
    assert not outcome.wrong, said(outcome)
    followed, _ = steps_after(outcome, 40.0, "the devices' speeds changed")
    assert followed <= 30


@pytest.mark.parametrize(
    ("rate", "slowness", "stages"),
    [
        (0.0, (1.0, 1.0, 1.0), 3),
        (4000.0, (1.0, 1.0, 1.0), 3),
        (1000.0, (1.0, 1.0, 1.0), 2),
        (1000.0, (1.0, 2.5, 5.0), 2),
        (400.0, (1.0, 2.5, 5.0), 1),
    ],
)
def test_a_pipelines_steps_take_as_long_as_planned_and_little_more_than_they_must(
    rate: float, slowness: tuple[float, ...], stages: int
) -> None:
    settings = {"strategy": "pipeline", "micro_batch": 3, "checkpoint_seconds": 0}
    outcome = simulate(3, [], replace(WAYS["pipeline"], settings=settings, rate=rate, slowness=slowness))
    assert not outcome.wrong, said(outcome)
    plan = next(event for event in outcome.events if "PlanMade" in event)
    (predicted,) = re.findall(r"'predicted_step_s': ([\d.]+)", plan)
    (micro_batches,) = re.findall(r"'micro_batches': (\d+)", plan)
    held = [float(each) for each in re.findall(r"first=\d+, last=\d+, seconds=([\d.]+)", plan)]
    steps = [re.findall(r"'seconds': ([\d.]+)", event)[0] for event in outcome.events if " Step {" in event]
    taken = float(steps[-1])
    assert len(held) == stages, "a link that holds a step up is not used"
    assert taken == pytest.approx(float(predicted), rel=0.05)
    assert least_seconds(held, int(micro_batches)) > 0.9 * taken
