"""How long a worker that is lost holds up the others, on a simulated clock: no other work on this computer is in it.

The same on real processes, a way each: ``test_faults_of_strategies``.
"""

from __future__ import annotations

import functools
from itertools import pairwise

import pytest

from tests.simulation.world import Fault, Outcome, simulate

WAYS = ("sync", "allreduce", "local_sgd")
"""Without the overlap of rounds: there a lost slice comes after the round that is under way."""

SEED = 2
"""One shard, on host ``a``."""

PROCESS_S, SILENCE_S = 1.0, 3.0
"""How much longer than usual a step may take when a process is killed, and when a host falls silent."""

AT_S, LONG_S = 6.0, 8.0


def longest(outcome: Outcome) -> float:
    """The longest time between two steps, in seconds."""
    times = [float(event.split()[0]) for event in outcome.events if event.split()[1] == "Step"]
    return max(later - earlier for earlier, later in pairwise(times))


@functools.cache
def usual(way: str) -> float:
    """The same without faults."""
    return longest(simulate(SEED, [], way))


def excess(way: str, *faults: Fault) -> float:
    outcome = simulate(SEED, faults, way)
    assert not outcome.wrong, outcome.wrong
    assert any("WorkerLost" in event for event in outcome.events)
    return longest(outcome) - usual(way)


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
