"""Checks which shards and workers answer, when something is late or lost, before one of them is blamed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
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


def check_servers(session: Session, seconds: float = PING_S) -> None:
    """Ping all shards, and wait up to ``seconds`` for their answers.

    Raises:
        ServerGone: a shard does not answer.
        TrainingError: a shard has failed.
    """
    calls = [(server.host, server.actor.call("ping")) for server in session.servers]
    deadline = time.monotonic() + seconds
    for host, call in calls:
        try:
            failed = rpc.get(call, max(0.0, deadline - time.monotonic()))
        except rpc.NoAnswer as error:
            raise server_gone(session, host, rpc.describe(error)) from error
        if isinstance(failed, Failed):
            raise failed.error(host)


def check_beats(session: Session, heartbeat: Heartbeat) -> None:
    """Check the heartbeat of the shards, without waiting unless one has failed.

    A shard counts as lost after :data:`SERVER_SILENT_S` of silence, since the return to a copy costs steps. If a worker
    on its host is silent too, the whole host counts as lost, and its shard with it.

    Args:
        heartbeat: the heartbeat of the shards and of all workers.

    Raises:
        ServerGone: a shard has ended, or is silent.
        TrainingError: a shard has failed.
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


def await_shards(session: Session, heartbeat: Heartbeat, calls: Sequence[Ref[Any]], seconds: float) -> None:
    """Wait until shards have answered ``calls``, up to a limit, as long as none is lost.

    Raises:
        ServerGone: a shard was lost meanwhile.
        One of Ray's errors: there is no answer in time, or a call failed.
    """
    end = time.monotonic() + seconds
    while len(rpc.wait_all(calls, LOOK_S)) < len(calls) and time.monotonic() < end:
        check_beats(session, heartbeat)
    rpc.get_all(calls, LOOK_S)


def check_weights(session: Session, heartbeat: Heartbeat, step: int) -> None:
    """If no worker takes part in ``step``, check that returning workers can get the weights before it.

    They can't if some chunks have made the step and others have not: then only a worker with the weights before the
    step can send the rest.

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
        # Data sent by lost workers has arrived before a new worker asks for weights.
        is_fetching |= beat.asked >= away.follows_since and not beat.pulse.following
    if not is_fetching:
        return
    calls = [server.actor.call("steps") for server in session.servers]
    try:
        made = frozenset[int]().union(*rpc.get_all(calls, PING_S))
    except rpc.NoAnswer:
        return  # the heartbeat will detect the lost shard
    if len(made) > 1:
        cause = f"the last worker was lost when the shards had made a part of step {step}"
        raise WeightsGone(cause, hint=SERVER_HINT)


def is_answered(member: WorkerHandle, call: Ref[Any], heartbeat: Heartbeat, seconds: float) -> bool:
    """Whether a worker answers a call; this waits as long as the worker answers pings, up to a limit."""
    end = time.monotonic() + seconds
    while rpc.first_ready([call], LOOK_S) is None:
        beat = heartbeat.of(member.actor)
        if beat.ended or beat.is_silent or time.monotonic() > end:
            return False
    return True


def answer_of(member: WorkerHandle, call: Ref[T], heartbeat: Heartbeat, seconds: float) -> T:
    """A worker's answer, waited for as in :func:`is_answered`; raises one of ``rpc.NoAnswer``."""
    is_answered(member, call, heartbeat, seconds)
    return rpc.get(call, 0.0)


def fetched(refs: Sequence[Ref[T]], seconds: float, is_lost: Callable[[], bool]) -> list[T]:
    """Wait for answers of several actors, at most ``seconds``.

    Once an actor ``is_lost``, wait only :data:`SERVER_SILENT_S` more: its host may still have the answer, but Ray does
    not report for a long time that a host is cut off.

    Raises:
        Timeout, or an error of Ray's: it does not come.
    """
    found: list[list[T]] = []
    errors: list[Exception] = []
    ended = threading.Event()

    def fetch() -> None:
        try:
            found.append(rpc.get_all(refs, seconds))
        except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
            errors.append(error)
        ended.set()

    threading.Thread(target=fetch, name="fetch", daemon=True).start()
    lived = time.monotonic()
    while not ended.wait(LOOK_S):
        if not is_lost():
            lived = time.monotonic()
        elif time.monotonic() - lived > SERVER_SILENT_S:
            raise rpc.Timeout("a worker was lost meanwhile")
    if errors:
        raise errors[0]
    return found[0]


def newest_weights(members: Sequence[WorkerHandle], heartbeat: Heartbeat) -> Payload:
    """The newest weights, from the first worker that answers; raises one of ``rpc.NoAnswer`` if none does."""
    *others, last = members
    for member in others:
        try:
            return answer_of(member, member.call("weights"), heartbeat, TRANSFER_S)
        except rpc.NoAnswer:
            continue  # its loss is detected at its next task
    return rpc.get(last.call("weights"), TRANSFER_S)


def server_gone(session: Session, host: str, cause: str, *others: str) -> ServerGone:
    """Make the error for a lost shard on ``host``, and for those on ``others``."""
    what = "the parameter server" if len(session.servers) == 1 else "a shard of the parameter server"
    error = ServerGone(f"{what} was lost: {cause}", hint=SERVER_HINT, host=host)
    error.known = (host, *others)
    return error
