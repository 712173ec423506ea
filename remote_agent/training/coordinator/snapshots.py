"""Keeps and restores the optimizers' state on the actors of a run; of the shards: ``recovery.shard_snapshots``.

Keeping it takes the time of a copy within the actors' memory. The state is fetched later, during training.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TypeVar

from remote_agent.training.checkpoint import optimizer_state
from remote_agent.training.checkpoint.optimizer_state import Resumption, Snapshot, TrainingState
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.processes.actors import Servers
from remote_agent.training.deadlines import SERVER_S, TRANSFER_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.rpc import Ref

T = TypeVar("T")


def of_worker(members: Sequence[WorkerHandle]) -> Snapshot:
    """Keep the state of the workers' optimizers, which is the same on all: on one worker, and on one of another host.

    The second copy is used if the first worker is lost before its state has been fetched.
    """
    keepers = [members[0], *[member for member in members if member.host != members[0].host][:1]]
    keeping = [member.call("snapshot") for member in keepers]
    taken: list[Ref[TrainingState]] = [member.call("snapshot_taken") for member in keepers]
    _first(keeping, SERVER_S)
    return lambda: _first(taken, TRANSFER_S)


def _first(refs: Sequence[Ref[T]], seconds: float) -> T:
    """The first of these results that is available."""
    for ref in refs[:-1]:
        with contextlib.suppress(*rpc.NoAnswer):
            return rpc.get(ref, seconds)
    return rpc.get(refs[-1], seconds)


def restore(servers: Servers, members: Sequence[WorkerHandle], resumed: Resumption, *, inner: bool = False) -> None:
    """Give servers and workers the state from which the run continues, before weights are streamed.

    With ``inner`` the workers' optimizers are not the servers', and what these remembered is nothing for them.
    """
    state, count = resumed.state, len(members)
    same = {} if inner else state.optimizer
    own = optimizer_state.for_workers(state.inner, count) if state.inner else (same,) * count
    calls = [servers.restore(resumed)]
    for member, states in zip(members, own, strict=True):
        given = Resumption(step=resumed.step, state=TrainingState(optimizer=states))
        calls.append(member.call("restore", rpc.put(given)))
    rpc.get_all(calls, TRANSFER_S)


class Once:
    """A :data:`Snapshot` that several threads may call; the state is fetched once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot: Snapshot | None = snapshot
        self._state: TrainingState | None = None
        self._lock = threading.Lock()

    def __call__(self) -> TrainingState:
        with self._lock:
            if self._state is None:
                assert self._snapshot is not None, "it is let go with the state"
                self._state = self._snapshot()
                self._snapshot = None
            return self._state
