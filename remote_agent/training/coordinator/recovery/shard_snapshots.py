"""Keeps the state of all shards, and of the workers' own optimizers; see :mod:`~..snapshots`."""

from __future__ import annotations

import contextlib
from itertools import chain

from remote_agent.training.checkpoint import optimizer_state
from remote_agent.training.checkpoint.optimizer_state import Snapshot, TrainingState
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery.liveness import await_shards, is_answered
from remote_agent.training.coordinator.session import Session
from remote_agent.training.deadlines import SERVER_S, TRANSFER_S
from remote_agent.training.shared import rpc


def of_shards(session: Session, heartbeat: Heartbeat, *, inner: bool = False) -> Snapshot:
    """Keep the state of all shards, and of each living worker's own optimizer (``inner``).

    Args:
        heartbeat: of the shards and workers; Ray notices much later that one of them is out of reach.

    Raises:
        ServerGone: a shard was lost meanwhile.
    """
    shards = [server.actor for server in session.servers]
    keeping = [shard.call("snapshot") for shard in shards]
    own_kept = [(member, member.call("snapshot")) for member in session.members] if inner else []
    await_shards(session, heartbeat, keeping, SERVER_S)
    members = [member for member, call in own_kept if is_answered(member, call, heartbeat, SERVER_S)]
    taken = [shard.call("snapshot_taken") for shard in shards]
    taken += [member.call("snapshot_taken") for member in members]
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
