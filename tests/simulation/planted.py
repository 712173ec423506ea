"""Bugs that are put back, or made, on purpose: random schedules have to find each within a thousand."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from remote_agent.training.checkpoint.optimizer_state import Packed
from remote_agent.training.coordinator.background import Background
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan.measurements import Measurements
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.processes.joining import Joining
from remote_agent.training.coordinator.recovery import backups, policy
from remote_agent.training.coordinator.recovery.membership import Membership
from remote_agent.training.coordinator.recovery.policy import Drop
from remote_agent.training.coordinator.strategies import streamed as strategy
from remote_agent.training.coordinator.strategies.allreduce import AllReduce
from remote_agent.training.coordinator.strategies.driver import Driver
from remote_agent.training.worker import streamed
from remote_agent.training.worker.reducing import ReductionEngine
from remote_agent.training.worker.staged import StageEngine
from tests.simulation import product
from tests.simulation.kernel import Killed
from tests.simulation.world import simulate

MANY = 1000
"""Schedules within which each has to be found; most are within the first ten."""


@dataclass(frozen=True)
class Bug:
    """One bug.

    Attributes:
        way: the strategy that it is in.
        wanted: a part of what is wrong then, in words.
        planted: a context manager: in its block it is there.
        near: a seed that finds it, or shortly before one.
    """

    way: str
    wanted: str
    planted: Callable[[], AbstractContextManager[object]]
    near: int = 0

    def found(self, first: int, most: int = MANY) -> int | None:
        """How many schedules it takes, from the one with seed ``first`` on; None: more than ``most``."""
        with self.planted():
            for seed in range(first, first + most):
                wrong = simulate(seed, None, self.way).wrong
                if wrong and self.wanted in wrong:
                    return seed - first + 1
        return None


@contextlib.contextmanager
def _drained_and_hung() -> Iterator[None]:
    """A worker that is to leave and does not answer is forgotten, and keeps its device."""
    handle_failure = Membership.handle_failure

    def forgets(self: Membership, step: int, member: WorkerHandle, *given: Any, **named: Any) -> None:
        if member in self._leaving:
            self._leaving.remove(member)
        handle_failure(self, step, member, *given, **named)

    with patch.object(Membership, "handle_failure", forgets):
        yield


@contextlib.contextmanager
def _unheard_of() -> Iterator[None]:
    """An unexpected error while a worker is started ends the thread, and what waits for it waits on."""
    measured, in_background, calls = product.measured, Joining._in_background, list[int]()

    def odd(*given: Any, **named: Any) -> Measurements:
        calls.append(1)
        if len(calls) % 2 == 0:
            raise ValueError("one that nobody expected")
        return measured(*given, **named)

    def unheard(self: Joining, work: Callable[[], WorkerHandle]) -> Any:
        def quiet() -> WorkerHandle:
            try:
                return work()
            except ValueError:
                raise Killed from None

        return in_background(self, quiet)

    with patch.object(product, "measured", odd), patch.object(Joining, "_in_background", unheard):
        yield


@contextlib.contextmanager
def heartbeat_fails() -> Iterator[None]:
    """Every twelfth round of pings fails of an unexpected error."""
    hear, rounds = Heartbeat._hear, list[int]()

    def fails(self: Heartbeat, began: float) -> None:
        rounds.append(1)
        if len(rounds) % 12 == 0:
            raise ValueError("one that nobody expected")
        hear(self, began)

    with patch.object(Heartbeat, "_hear", fails):
        yield


@contextlib.contextmanager
def _heartbeat_ends() -> Iterator[None]:
    """An unexpected error ends the pings, and nothing hears of it."""
    with heartbeat_fails(), patch.object(Background, "check", lambda _: None):
        yield


@contextlib.contextmanager
def _given_up() -> Iterator[None]:
    """A worker whose second start fails gets no third."""
    again = policy._again
    with patch.object(policy, "_again", lambda cause, status: Drop(cause) if status.attempts else again(cause, status)):
        yield


@contextlib.contextmanager
def _not_looked_at() -> Iterator[None]:
    """A worker that was to leave is not looked at once it has answered, while what it sends may not have come."""
    after = Driver.next

    def forgets(self: Driver, step: int, awaited: Any, owed: Any, sending: Any = ()) -> Any:
        del sending
        return after(self, step, awaited, owed)

    with patch.object(Driver, "next", forgets):
        yield


@contextlib.contextmanager
def _any_of_its_name() -> Iterator[None]:
    """A worker that was started again counts as the one before it, which had kept the weights."""
    kept = backups._kept

    class AnyOf(frozenset[str]):
        def __contains__(self, key: object) -> bool:
            return any(str(key)[0] == other[0] for other in self)

    with patch.object(backups, "_kept", lambda keeping: AnyOf(kept(keeping))):
        yield


@contextlib.contextmanager
def _remembers() -> Iterator[None]:
    """A stage whose process stays keeps what the optimizer remembered, of steps that are made again."""
    take, release, kept = StageEngine.take, StageEngine.release, dict[StageEngine, Packed]()

    def keeps(self: StageEngine, role: Any, weights: Any, done: int, state: Packed) -> Any:
        return take(self, role, weights, done, {**state, **kept.get(self, {})})

    def noting(self: StageEngine) -> Any:
        if self._stage is not None:
            kept[self] = copy.deepcopy(self.remembered()[0])
        return release(self)

    with patch.object(StageEngine, "take", keeps), patch.object(StageEngine, "release", noting):
        yield


BUGS = {
    # REVIEW's 3, 5 and 6, and giving up.
    "drained and hung": Bug("local_sgd_overlap", "which nobody uses", _drained_and_hung, near=195),
    "unheard of": Bug("allreduce", "takes no part at the end", _unheard_of, near=5),
    "heartbeat ends": Bug("sync", "no step for", _heartbeat_ends),
    "given up": Bug("allreduce", "takes no part at the end", _given_up, near=10),
    # Found by the simulation, and mended.
    "any of its name": Bug("sync", "weights of step", _any_of_its_name, near=942),
    "drained and lost": Bug("local_sgd_overlap", "no step for", _not_looked_at, near=1620),
    "waits for a repair": Bug(
        "local_sgd_overlap", "no step for", lambda: patch.object(streamed, "REPAIR_S", 3600.0), near=66
    ),
    # Mistakes that are easily made.
    "no optimizer state": Bug(
        "allreduce", "weights", lambda: patch.object(ReductionEngine, "snapshot", lambda _: None)
    ),
    "not freed": Bug("allreduce", "", lambda: patch.object(AllReduce, "_call_off", lambda *_: None), near=18),
    "not issued again": Bug("allreduce", "samples", lambda: patch.object(AllReduce, "_reissue", lambda *_: None)),
    "remembers": Bug("pipeline", "weights", _remembers),
    "a part for the whole": Bug(
        "sync_pairs", "", lambda: patch.object(strategy, "whole_slice", lambda task, _: task), near=25
    ),
    "not committed": Bug("allreduce", "", lambda: patch.object(AllReduce, "_commit", lambda *_: None)),
}
