"""Random faults on a simulated clock: exact weights, every sample once, no hang, everybody back at the end."""

from __future__ import annotations

from typing import Any

import pytest

from remote_agent.training.coordinator.plan.measure import Measurements
from remote_agent.training.coordinator.processes import joining
from remote_agent.training.coordinator.recovery import policy
from remote_agent.training.coordinator.recovery.policy import Drop
from remote_agent.training.coordinator.share_balancer import ShareBalancer
from remote_agent.training.coordinator.strategies.allreduce import AllReduce
from remote_agent.training.worker.reducing import ReductionEngine
from tests.simulation import world
from tests.simulation.kernel import Killed
from tests.simulation.world import WAYS, Fault, Outcome, simulate

SEEDS, A_TEST = 40, 20

MANY = 100
"""Schedules within which a planted bug has to be found; most are within the first."""


def said(outcome: Outcome) -> str:
    faults, events = ("\n".join(map(str, each)) for each in (outcome.faults, outcome.events))
    again = f"python -m benchmarks.simulation --strategy {outcome.way} --seed {outcome.seed}"
    return f"{outcome.wrong}\n{faults}\n{events}\nonce more: {again}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", range(0, SEEDS, A_TEST))
def test_whatever_happens_to_hosts_the_weights_are_a_plain_loops_and_all_train_at_the_end(first: int, way: str) -> None:
    for seed in range(first, first + A_TEST):
        outcome = simulate(seed, None, way)
        assert not outcome.wrong, said(outcome)
        assert outcome.steps > 20, "it was no run"


def test_a_seed_gives_the_same_run_each_time() -> None:
    first = simulate(3)
    assert len(first.events) > 3
    assert simulate(3) == first
    assert simulate(4).events != first.events


def test_a_run_without_faults_loses_nobody() -> None:
    outcome = simulate(1, [])
    assert not outcome.wrong, said(outcome)
    assert not any("WorkerLost" in event for event in outcome.events)
    assert outcome.stall_s < 2


def found(way: str = "allreduce") -> str:
    """What is wrong in the first schedule that finds something wrong."""
    return next((outcome.wrong for seed in range(MANY) if (outcome := simulate(seed, None, way)).wrong), "")


def test_it_finds_a_worker_that_comes_back_without_the_optimizers_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReductionEngine, "snapshot", lambda _: None)
    assert "weights" in found()


def test_it_finds_workers_that_nobody_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllReduce, "_call_off", lambda *_: None)
    assert "no step for" in found()


def test_it_finds_a_slice_that_is_not_issued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllReduce, "_reissue", lambda *_: None)
    assert "samples" in found()


def test_it_finds_a_host_that_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    again = policy._again
    monkeypatch.setattr(
        policy, "_again", lambda cause, standing: Drop(cause) if standing.attempts else again(cause, standing)
    )
    assert "takes no part at the end" in found()


def test_it_finds_a_slice_that_is_given_to_who_waits_for_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_load(self: ShareBalancer, size: int, busy: dict[Any, float], step: int) -> Any:
        del size, step
        return min(self._session.members, key=lambda member: busy.get(member, 0.0))

    monkeypatch.setattr(ShareBalancer, "substitute", by_load)
    assert "no step for" in found("sync")


def test_it_finds_an_error_in_the_background_that_nobody_hears_of(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, calls = world.measured, []

    def odd(candidates: Any, *given: Any) -> Measurements:
        calls.append(1)
        if len(calls) % 2:
            raise ValueError("one that nobody expected")
        return measured(candidates, *given)

    added = [Fault(2.0, "drain", "b", 3.0)]
    monkeypatch.setattr(world, "measured", odd)
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


def test_it_finds_a_step_that_is_not_committed_before_its_weights_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AllReduce, "_commit", lambda *_: None)
    assert found()


@pytest.mark.parametrize("after_s", [0.05, 0.2])
def test_a_step_goes_on_when_only_workers_are_left_that_take_part_from_the_next_one_on(after_s: float) -> None:
    drained = [Fault(0.5, "drain", "a", 12.0), Fault(2.0, "drain", "b", 1.0)]
    events = simulate(3, drained, "sync").events
    joined_s = next(float(event.split()[0]) for event in events if "WorkerJoined" in event and "b/cpu" in event)
    outcome = simulate(3, [*drained, Fault(joined_s + after_s, "kill", "c", 0.0)], "sync")
    assert not outcome.wrong, said(outcome)


def test_a_drained_worker_that_stops_while_another_one_is_lost_holds_nothing_up() -> None:
    drained = Fault(2.0, "drain", "b", 12.0)
    left_s = next(float(event.split()[0]) for event in simulate(0, [drained], "sync").events if "WorkerLost" in event)
    both = [Fault(left_s + 0.1, "freeze", "b", 1000.0), Fault(left_s + 0.2, "kill", "c", 0.0)]
    outcome = simulate(0, [drained, *both], "sync")
    assert not outcome.wrong, said(outcome)
