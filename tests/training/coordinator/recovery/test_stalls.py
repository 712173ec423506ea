"""How long a worker that is lost holds up the others, on a simulated clock: no other work on this computer is in it.

The same on real processes, a way each: ``test_faults_of_strategies``.
"""

from __future__ import annotations

import functools

import pytest

from tests.simulation.world import WAYS, Fault, simulate

PROCESS_S, SILENCE_S = 1.0, 3.0
"""How much longer than usual a step may take when a process is killed, and when a host falls silent."""

AT_S, LONG_S = 3.0, 8.0


@functools.cache
def usual(way: str) -> float:
    """The longest step of a run without faults, in seconds."""
    return simulate(1, [], way).stall_s


def excess(way: str, *faults: Fault) -> float:
    outcome = simulate(1, faults, way)
    assert not outcome.wrong, outcome.wrong
    assert any("WorkerLost" in event for event in outcome.events)
    return outcome.stall_s - usual(way)


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_worker_holds_up_the_others_for_a_second(way: str) -> None:
    assert 0 < excess(way, Fault(AT_S, "kill", "b", 0.0)) < PROCESS_S


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["freeze", "cut"])
def test_a_worker_that_falls_silent_holds_up_the_others_for_three_seconds(way: str, kind: str) -> None:
    assert 0 < excess(way, Fault(AT_S, kind, "b", LONG_S)) < SILENCE_S


def test_two_workers_that_are_lost_in_one_step_hold_it_up_no_longer_than_one() -> None:
    # One falls silent, and before that is noticed, the other one is killed.
    both = Fault(AT_S, "freeze", "c", LONG_S), Fault(AT_S + 0.1, "kill", "b", 0.0)
    assert 0 < excess("sync", *both) < SILENCE_S
