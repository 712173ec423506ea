"""Keeping and bringing back what optimizers remember, on all actors of a run; the coordinator's part.

To keep it takes as long as a copy within the actors' memory. It is fetched later, while training goes on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from itertools import chain

from remote_agent.training import rpc
from remote_agent.training.actors import Servers
from remote_agent.training.deadlines import SERVER_S, TRANSFER_S
from remote_agent.training.rpc import Actor
from remote_agent.training.saving import optimizer_state
from remote_agent.training.saving.optimizer_state import Resumption, Snapshot, TrainingState
from remote_agent.training.session import Member, Session


def of_server(session: Session) -> Snapshot:
    """Keep the state of a server that runs the job's own optimizer on the whole model."""
    return _held(session.server)


def of_shards(session: Session, *, inner: bool = False, weights: bool = False) -> Snapshot:
    """Keep the state of all shards; and of each living worker's own optimizer (``inner``).

    With ``weights`` the shards keep those too, each parameter's under the name :data:`~.optimizer_state.WEIGHTS`.
    """
    shards, members = [server.actor for server in session.servers], list(session.crew) if inner else []
    keeping = [shard.call("snapshot", weights) for shard in shards]
    keeping += [member.actor.call("snapshot") for member in members]
    rpc.get_all(keeping, SERVER_S)
    taken = [actor.call("snapshot_taken") for actor in (*shards, *(member.actor for member in members))]
    shapes = session.shapes

    def fetch() -> TrainingState:
        fragments = chain.from_iterable(rpc.get_all(taken[: len(shards)], TRANSFER_S))
        own: list[TrainingState] = []
        for ref in taken[len(shards) :]:
            with contextlib.suppress(*rpc.Lost):  # its host was lost meanwhile, and its optimizer with it
                own.append(rpc.get(ref, TRANSFER_S))
        return TrainingState(
            optimizer=optimizer_state.assemble(fragments, shapes),
            inner=tuple(state.optimizer for state in own),
            missing="".join(sorted({state.missing for state in own})),
        )

    return fetch


def of_worker(member: Member) -> Snapshot:
    """Keep the state of one worker's own optimizer, where every worker has the same."""
    return _held(member.actor)


def restore(servers: Servers, crew: Sequence[Member], resumed: Resumption) -> None:
    """Tell servers and workers where the run goes on; before weights are published or streamed."""
    state = resumed.state
    inner = optimizer_state.for_workers(state.inner, len(crew)) if state.inner else (state.optimizer,) * len(crew)
    calls = [servers.restore(resumed)]
    for member, states in zip(crew, inner, strict=True):
        own = Resumption(step=resumed.step, state=TrainingState(optimizer=states))
        calls.append(member.actor.call("restore", rpc.put(own)))
    rpc.get_all(calls, TRANSFER_S)


class Once:
    """A :data:`Snapshot` that several may call, from any threads: what is kept is fetched once."""

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


def _held(actor: Actor) -> Snapshot:
    rpc.get(actor.call("snapshot"), SERVER_S)
    taken = actor.call("snapshot_taken")

    def fetch() -> TrainingState:
        state = rpc.get(taken, TRANSFER_S)
        assert isinstance(state, TrainingState), "it holds whole parameters"
        return state

    return fetch
