"""Random faults on a simulated clock: exact weights, every sample once, no hang, everybody back at the end."""

from __future__ import annotations

from typing import Any

import pytest

from remote_agent.training.coordinator.background import Background
from remote_agent.training.coordinator.plan.measure import Measurements
from remote_agent.training.coordinator.processes import joining
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery import backups, policy
from remote_agent.training.coordinator.recovery.policy import Drop
from remote_agent.training.coordinator.strategies.allreduce import AllReduce
from remote_agent.training.worker.reducing import ReductionEngine
from remote_agent.training.worker.streamed import Streaming
from tests.simulation import product
from tests.simulation.kernel import Killed
from tests.simulation.world import WAYS, Fault, Outcome, simulate

SEEDS = 50
"""Schedules of each strategy."""

MANY = 300
"""Schedules within which a planted bug has to be found; most are within the first ten."""


def said(outcome: Outcome) -> str:
    faults, events = ("\n".join(map(str, each)) for each in (outcome.faults, outcome.events))
    again = f"python -m benchmarks.simulation --strategy {outcome.way} --seed {outcome.seed}"
    return f"{outcome.wrong}\n{faults}\n{events}\nonce more: {again}"


@pytest.mark.parametrize("way", WAYS)
def test_whatever_happens_to_hosts_each_sample_counts_once_and_all_train_at_the_end(way: str) -> None:
    for seed in range(SEEDS):
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


def found(wanted: str, way: str = "allreduce") -> bool:
    """Whether a schedule fails in that way; how many it takes is printed."""
    for seed in range(MANY):
        wrong = simulate(seed, None, way).wrong
        if wrong and wanted in wrong:
            print(f"{wanted!r}: {way}, seed {seed}, schedule {seed + 1}")
            return True
    return False


def test_it_finds_a_worker_that_comes_back_without_the_optimizers_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReductionEngine, "snapshot", lambda _: None)
    assert found("weights")


def test_it_finds_workers_that_nobody_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllReduce, "_call_off", lambda *_: None)
    assert found("could not be reduced")


def test_it_finds_a_slice_that_is_not_issued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllReduce, "_reissue", lambda *_: None)
    assert found("samples")


def test_it_finds_a_host_that_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    again = policy._again
    monkeypatch.setattr(
        policy, "_again", lambda cause, standing: Drop(cause) if standing.attempts else again(cause, standing)
    )
    assert found("takes no part at the end")


def test_it_finds_a_heartbeat_that_ends_with_an_error_and_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    hear, rounds = Heartbeat._hear, list[int]()

    def fails(self: Heartbeat, began: float) -> None:
        rounds.append(1)
        if len(rounds) % 12 == 0:
            raise ValueError("one that nobody expected")
        hear(self, began)

    monkeypatch.setattr(Heartbeat, "_hear", fails)
    assert found("heartbeat ended", "sync"), "the run ends with it"
    monkeypatch.setattr(Background, "check", lambda _: None)
    assert found("no step for", "sync")


def test_it_finds_an_error_in_the_background_that_nobody_hears_of(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, calls = product.measured, []

    def odd(candidates: Any, *given: Any) -> Measurements:
        calls.append(1)
        if len(calls) % 2 == 0:
            raise ValueError("one that nobody expected")
        return measured(candidates, *given)

    added = [Fault(4.0, "drain", "b", 3.0)]
    monkeypatch.setattr(product, "measured", odd)
    assert not simulate(1, added).wrong, "it is tried again"
    calls.clear()
    open_ = joining.Joining._in_background

    def unheard(self: joining.Joining, work: Any) -> Any:
        def quiet() -> Any:
            try:
                return work()
            except ValueError:
                raise Killed from None  # ends the thread, and the future stays open

        return open_(self, quiet)

    monkeypatch.setattr(joining.Joining, "_in_background", unheard)
    assert "takes no part at the end" in simulate(1, added).wrong
    calls.clear()
    assert found("takes no part at the end")


def test_it_finds_a_step_that_is_not_committed_before_its_weights_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AllReduce, "_commit", lambda *_: None)
    assert found("")


# --- Bugs that it has found, put back --------------------------------------------------------------------------------


def test_it_finds_a_worker_that_is_taken_for_who_kept_the_weights_before_it_was_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = backups._kept

    class AnyOf(frozenset[str]):
        """As if the names of workers were kept in the place of their processes'."""

        def __contains__(self, key: object) -> bool:
            return any(str(key)[0] == other[0] for other in self)

    monkeypatch.setattr(backups, "_kept", lambda keeping: AnyOf(kept(keeping)))
    assert found("weights of step", "ssp")


def test_it_finds_a_lost_slice_behind_one_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from remote_agent.training.worker import streamed

    assert Streaming.repair.__module__ == streamed.__name__
    monkeypatch.setattr(streamed, "REPAIR_S", 3600.0)
    assert found("no step for", "local_sgd_overlap")


@pytest.mark.parametrize("after_s", [0.05, 0.2])
def test_a_step_goes_on_when_only_workers_are_left_that_take_part_from_the_next_one_on(after_s: float) -> None:
    drained = [Fault(4.0, "drain", "a", 12.0), Fault(6.0, "drain", "b", 1.0)]
    events = simulate(3, drained, "sync").events
    joined_s = next(float(event.split()[0]) for event in events if "WorkerJoined" in event and "b/cpu" in event)
    outcome = simulate(3, [*drained, Fault(joined_s + after_s, "kill", "c", 0.0)], "sync")
    assert not outcome.wrong, said(outcome)


def test_a_drained_worker_that_stops_while_another_one_is_lost_holds_nothing_up() -> None:
    drained = Fault(4.0, "drain", "b", 12.0)
    left_s = next(float(event.split()[0]) for event in simulate(0, [drained], "sync").events if "WorkerLost" in event)
    both = [Fault(left_s + 0.1, "freeze", "b", 1000.0), Fault(left_s + 0.2, "kill", "c", 0.0)]
    outcome = simulate(0, [drained, *both], "sync")
    assert not outcome.wrong, said(outcome)


def test_a_drained_worker_that_dies_while_it_sends_its_last_slice_with_overlap_holds_nothing_up() -> None:
    at = 7.747488104753526
    faults = [Fault(at, "freeze", "c", 0.23), Fault(at, "drain", "c", 3.3), Fault(at + 0.3, "tear", "c", 3.0)]
    outcome = simulate(825, faults, "local_sgd_overlap")
    assert not outcome.wrong, said(outcome)
