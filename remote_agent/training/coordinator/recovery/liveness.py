"""Which shards and workers answer: asked when something is late or lost, before one of them is blamed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.session import Session
from remote_agent.training.deadlines import LOOK_S, PING_S, SERVER_SILENT_S, TRANSFER_S
from remote_agent.training.errors import ServerGone, WeightsGone
from remote_agent.training.shared import rpc
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import Failed
from remote_agent.training.shared.rpc import Ref

T = TypeVar("T")

SERVER_HINT = (
    "look at the host's memory and its log, then resume the run: it goes on from its newest checkpoint"
    " (without one, start it again)"
)


def check_servers(session: Session) -> None:
    """Ask all shards, within :data:`PING_S`.

    Raises:
        ServerGone: one does not answer.
        TrainingError: one has failed.
    """
    calls = [(server.host, server.actor.call("ping")) for server in session.servers]
    deadline = time.monotonic() + PING_S
    for host, call in calls:
        try:
            failed = rpc.get(call, max(0.0, deadline - time.monotonic()))
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
            raise server_gone(session, host, rpc.describe(error)) from error
        if isinstance(failed, Failed):
            raise failed.error(host)


def check_beats(session: Session, heartbeat: Heartbeat) -> None:
    """See what the heartbeat heard of the shards; none is waited for unless one has failed.

    A shard alone is gone once it has been silent for :data:`SERVER_SILENT_S`: going back to a copy costs steps. Where
    a worker on its host is silent too, the host is cut off, and it is gone with it.

    Args:
        session: the run's.
        heartbeat: it watches the shards, and all workers.

    Raises:
        ServerGone: one has ended, or is silent.
        TrainingError: one has failed.
    """
    workers = [*session.members, *(away.member for away in session.away if away.member is not None)]
    silent = {member.host for member in workers if heartbeat.of(member.actor).is_silent}
    for server in session.servers:
        beat = heartbeat.of(server.actor)
        if beat.failed:
            check_servers(session)
        is_cut_off = beat.is_silent and server.host in silent
        if beat.ended or is_cut_off or beat.silent_s > SERVER_SILENT_S:
            raise server_gone(session, server.host, beat.ended or f"no answer for {beat.silent_s:.1f} s")


def check_weights(session: Session, heartbeat: Heartbeat, step: int) -> None:
    """Where no worker takes part in ``step``, see that those on their way back can get the weights it begins with.

    They can't where some chunks have made the step and others have not: the rest of it can be sent by a worker that has
    the weights before it, and by no other.

    Raises:
        WeightsGone: no such worker is left.
    """
    is_fetching = False
    for away in session.away:
        if away.member is None or away.follows is None:
            continue
        beat = heartbeat.of(away.member.actor)
        if beat.pulse.done >= step - 1:
            return
        # What workers that were lost had sent has come by the time that a new one asks for weights.
        is_fetching |= beat.asked >= away.follows_since and not beat.pulse.following
    if not is_fetching:
        return
    calls = [server.actor.call("steps") for server in session.servers]
    try:
        made = frozenset[int]().union(*rpc.get_all(calls, PING_S))
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
        return  # the heartbeat finds out which shard it is
    if len(made) > 1:
        cause = f"the last worker was lost when the shards had made a part of step {step}"
        raise WeightsGone(cause, hint=SERVER_HINT)


def is_answered(member: WorkerHandle, call: Ref[Any], heartbeat: Heartbeat, seconds: float) -> bool:
    """Whether a worker that is watched answers a call; waited for as long as it answers pings, and so long at most."""
    end = time.monotonic() + seconds
    while rpc.first_ready([call], LOOK_S) is None:
        beat = heartbeat.of(member.actor)
        if beat.ended or beat.is_silent or time.monotonic() > end:
            return False
    return True


def answer_of(member: WorkerHandle, call: Ref[T], heartbeat: Heartbeat, seconds: float) -> T:
    """What a worker answers, waited for as by :func:`is_answered`.

    Raises:
        Timeout, or an error of Ray's: it does not come.
    """
    is_answered(member, call, heartbeat, seconds)
    return rpc.get(call, 0.0)


def newest_weights(members: Sequence[WorkerHandle], heartbeat: Heartbeat) -> Payload:
    """The newest weights, from whichever living worker gives them first; the last one is waited for in any case.

    Raises:
        Timeout, or an error of Ray's: none does.
    """
    *others, last = members
    for member in others:
        try:
            return answer_of(member, member.call("weights"), heartbeat, TRANSFER_S)
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
            continue  # it is found lost with what it is given next
    return rpc.get(last.call("weights"), TRANSFER_S)


def server_gone(session: Session, host: str, cause: str) -> ServerGone:
    """The error that the shard on ``host`` was lost."""
    what = "the parameter server" if len(session.servers) == 1 else "a shard of the parameter server"
    error = ServerGone(f"{what} was lost: {cause}", hint=SERVER_HINT, host=host)
    error.known = True
    return error
