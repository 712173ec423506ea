"""Restores lost shards of the parameter server: returns the run to the newest copy, and repeats the steps since.

A shard on a drained host is moved in the same way, as soon as a copy has arrived: so the host can be switched off.

It proceeds in this order:

1. Workers that wait for the shards are freed. Workers that do not answer are lost too.
2. Each lost shard is replaced by a new one on the coordinator's host, where the copy is.
3. All shards load the state of the copied step and serve with a new secret, so that an old shard that was only cut off
   can't interfere.
4. All workers return to the weights that they kept of that step.

The steps since are then repeated with the same samples, each counted once: the record of slices marks its superseded
lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

import psutil

from remote_agent.protocol import RunResumed, ServerLost
from remote_agent.training.checkpoint.optimizer_state import Resumption, Shapes, cut
from remote_agent.training.coordinator import transfer
from remote_agent.training.coordinator.members import Server
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery.backups import Copy, is_restorable
from remote_agent.training.coordinator.recovery.liveness import answer_of, is_answered
from remote_agent.training.coordinator.recovery.membership import lose
from remote_agent.training.coordinator.session import KeepSchedule, Session, Takeover
from remote_agent.training.deadlines import HEARTBEAT_S, SERVER_S, TRANSFER_S
from remote_agent.training.errors import LostAtStart, PlacementError, ServerGone, ShardLeaves, StageLost, WeightsGone
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import PING, Failed
from remote_agent.training.wire.endpoint import StreamInfo
from remote_agent.training.wire.layout import Layout

LOG = logging.getLogger(__name__)

MAX_RESTORES = 5
"""How often in a row shards or stages may be lost without a new step in between."""

SPARE_BYTES = 1 << 30
"""Free memory that a spare process requires; it uses about a fifth of that."""

SHARD_COPIES = 6
"""A shard's memory over that of its weights: those, sums of two steps, two moments of the optimizer, what is sent."""

_HINT = "resume the run: it goes on from its newest checkpoint"


class Restorer:
    """Returns to a copy or checkpoint whenever shards or stages are lost, until this does not help any more.

    Args:
        host: the coordinator's, for events.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._furthest = self._failed_attempts = 0

    def made(self, step: int) -> None:
        """After a step, forget the earlier losses if the run has made new progress."""
        if step > self._furthest:
            self._furthest, self._failed_attempts = step, 0

    def count(self, lost: ServerGone | StageLost) -> None:
        """Count an attempt; raises ``lost`` once :data:`MAX_RESTORES` attempts have failed."""
        self._failed_attempts += 1
        if self._failed_attempts > MAX_RESTORES:
            raise lost

    def restore(self, session: Session, copy: Copy | None, lost: ServerGone, step: int) -> Session:
        """As :func:`restore`, and again if more shards are lost meanwhile.

        Raises:
            ServerGone: the shards can't be restored, or :data:`MAX_RESTORES` attempts have failed.
            WeightsGone: there is no copy yet, as after a takeover.
        """
        if copy is None:
            raise WeightsGone(lost.cause, hint=_HINT, host=lost.host) from lost
        while True:
            self.count(lost)
            try:
                return restore(session, copy, lost, step, self._host)
            except ServerGone as error:
                if error is lost:
                    raise
                lost = error


def restore(session: Session, copy: Copy, lost: ServerGone, step: int, host: str) -> Session:
    """Return all shards and workers to ``copy``.

    Args:
        session: the run's, whose strategy has ended with ``lost``.
        step: the step in which it was lost.
        host: the coordinator's, for events.

    Returns:
        The session to continue with.

    Raises:
        ServerGone: the shards can't be restored (``lost`` itself), or another shard was lost meanwhile.
        WeightsGone: no worker with the copied step's weights is left.
        TrainingError: as :meth:`Servers.further`.
    """
    if not is_restorable(session) or session.stream is None or session.pool is None:
        raise lost
    began = time.monotonic()
    if not isinstance(lost, ShardLeaves):
        session.journal.write(ServerLost, host=lost.host, step=step, cause=lost.cause)
    living = _free_workers(session, step, lost.known)
    servers = _complete(session, living)
    hosts = [f"{before.host} -> {now.host}" for before, now in zip(session.servers, servers, strict=True)]
    LOG.info("step %d: shards (%s) are restored from the copy of step %d", step, ", ".join(hosts), copy.step)
    with Heartbeat() as heartbeat:
        heartbeat.watch([member.actor for member in session.members])
        try:
            _load(session, servers, copy)
            kept = _weights(session, copy, servers, heartbeat)
            entry = transfer.serve(session.stream, servers, kept)
        except ServerGone:
            for before, new in zip(session.servers, servers, strict=True):
                if new is not before:
                    new.actor.kill()  # the next attempt starts with the old ones
            raise
        session.joining.entry = entry
        _rejoin(session, copy, entry, kept, step, heartbeat)
    session.journal.write(
        RunResumed,
        step=copy.step,
        host=host,
        checkpoint="",
        samples=copy.position,
        iterations=session.config.num_iterations,
        cause=lost.cause if isinstance(lost, ShardLeaves) else "",
        notes=_notes(session, servers, step - 1 - copy.step, time.monotonic() - began),
    )
    order = session.order.going_on(copy.step, copy.position)
    takeover = Takeover(coordinator=session.coordinator) if session.takeover is not None else None
    return dataclasses.replace(session, servers=servers, order=order, keeping=KeepSchedule(), takeover=takeover)


def prepare(session: Session) -> None:
    """Start a spare process for a lost shard, if this host has memory for it, without waiting for it."""
    if not is_restorable(session) or session.pool is None or session.pool.spare is not None:
        return
    if psutil.virtual_memory().available > SPARE_BYTES:
        # Ignore errors of the cluster here; without a spare, a restore only takes longer.
        with contextlib.suppress(PlacementError, rpc.Unexpected):
            session.pool.have_spare(placement.here(placement.living_nodes()).host)


def leave_drained(session: Session) -> None:
    """Have a shard leave a drained host for a spare process, when a copy has just arrived: few steps are repeated.

    It stays where the spare process's host has no memory for it: the run does not depend on the move.

    Raises:
        ShardLeaves: one has to leave.
    """
    membership, pool, stream = session.membership, session.pool, session.stream
    if not membership.draining or stream is None or pool is None or pool.spare is None or not pool.is_spare_warm:
        return
    staying = {pool.spare.host, *(member.host for member in (*membership.members, *membership.leaving))}
    for number, server in enumerate(session.servers):
        size = SHARD_COPIES * 4 * sum(stream.layout.chunks[chunk].numel for chunk in stream.layout.by_shard[number])
        if server.host in membership.draining - staying and psutil.virtual_memory().available > SPARE_BYTES + size:
            leaves = ShardLeaves(f"{server.host} is drained", hint=_HINT, host=server.host)
            leaves.known = (server.host,)
            raise leaves


def part_of(copy: Copy, shapes: Shapes, layout: Layout, shard: int) -> Resumption:
    """The part of ``copy`` that shard number ``shard`` needs."""
    chunks = [layout.chunks[chunk] for chunk in layout.by_shard[shard]]
    own = {(chunk.begin, chunk.end): cut(copy.state.optimizer, shapes, chunk.begin, chunk.end) for chunk in chunks}
    return Resumption(step=copy.step, pieces=own)


# --- What is left ----------------------------------------------------------------------------------------------------


def _free_workers(session: Session, step: int, gone: Collection[str]) -> list[bool]:
    """Free the workers that wait for shards; returns for each shard whether it answers.

    Workers that do not answer are lost. The shards on the hosts ``gone`` are known to be lost and are not asked.

    Raises:
        TrainingError: a shard answers that it has failed, which would happen to a new one too.
    """
    freeing = [(member, member.call_in(PING, "abandon")) for member in session.members]
    asking = [(server, server.actor.call("ping") if server.host not in gone else None) for server in session.servers]
    deadline = time.monotonic() + HEARTBEAT_S
    answers = []
    for server, call in asking:
        if call is None:
            answers.append(False)
            continue
        try:
            failed = rpc.get(call, max(0.0, deadline - time.monotonic()))
        except rpc.NoAnswer:
            answers.append(False)
            continue
        if isinstance(failed, Failed):
            raise failed.error(server.host)
        answers.append(True)
    for member, freed in freeing:
        try:
            rpc.get(freed, max(0.0, deadline - time.monotonic()))
        except rpc.NoAnswer as error:
            if member in session.members:
                lose(session, member, step, rpc.describe(error))
    return answers


# --- Shards ----------------------------------------------------------------------------------------------------------


def _complete(session: Session, living: Sequence[bool]) -> tuple[Server, ...]:
    """The shards in the layout's order, with each lost one replaced by a new one on this host."""
    assert session.pool is not None, "lost shards can be started again"
    for server, lives in zip(session.servers, living, strict=True):
        if not lives:
            server.actor.kill()  # it may be alive, but unreachable
    here = placement.here(placement.living_nodes())
    try:
        new = iter(session.pool.further(here.host, list(living).count(False)))
    except LostAtStart as error:
        raise ServerGone(error.cause, hint=_HINT, host=here.host) from error
    return tuple(server if lives else next(new) for server, lives in zip(session.servers, living, strict=True))


def _load(session: Session, servers: Sequence[Server], copy: Copy) -> None:
    """Give each shard its part of the copied state."""
    assert session.stream is not None, "the shards are streamed to"
    calls = []
    for number, server in enumerate(servers):
        part = part_of(copy, session.shapes, session.stream.layout, number)
        calls.append((server, server.actor.call("restore", rpc.put(part))))
    for server, call in calls:
        try:
            rpc.get(call, SERVER_S)
        except rpc.NoAnswer as error:
            cause = f"a shard was lost while it was restored: {rpc.describe(error)}"
            raise ServerGone(cause, hint=_HINT, host=server.host) from error


# --- Workers ---------------------------------------------------------------------------------------------------------


def _weights(session: Session, copy: Copy, servers: Sequence[Server], heartbeat: Heartbeat) -> rpc.Ref[Any]:
    """The copied step's weights, from a living worker, if possible on a shard's host."""
    near = {server.host for server in servers}
    for member in sorted(session.members, key=lambda member: member.host not in near):
        if member.actor.key not in copy.holders:
            continue
        kept: rpc.Ref[Any] = member.call("kept_weights", copy.step)
        if is_answered(member, kept, heartbeat, TRANSFER_S):
            return kept
    cause = f"no living worker has the weights of step {copy.step}"
    raise WeightsGone(cause, hint=_HINT)


def _rejoin(
    session: Session, copy: Copy, entry: StreamInfo, kept: rpc.Ref[Any], step: int, heartbeat: Heartbeat
) -> None:
    """Return all workers to the copied step and connect them to the new shards; those lost meanwhile are left out."""
    calls = [
        (
            member,
            member.call("rejoin", None if member.actor.key in copy.holders else kept, copy.step, entry.of(member.host)),
        )
        for member in session.members
    ]
    for member, call in calls:
        try:
            answer = answer_of(member, call, heartbeat, TRANSFER_S)
        except rpc.NoAnswer as error:
            lose(session, member, step, rpc.describe(error))
            continue
        if isinstance(answer, Failed):
            error_of = answer.error(member.host)
            raise PlacementError(error_of.cause, hint=error_of.hint, host=member.host, detail=error_of.detail)


def _notes(session: Session, servers: Sequence[Server], again: int, seconds: float) -> tuple[str, ...]:
    which = "all shards" if len(servers) > 1 else "the shard"
    said = [f"the state of {which} was restored from its copy in {seconds:.1f} s; {max(0, again)} steps are made again"]
    said += [
        f"{before.host}'s shard is on {after.host} now"
        for before, after in zip(session.servers, servers, strict=True)
        if before.actor is not after.actor
    ]
    if session.config.codec != "fp32":
        said.append("what the codec had put off for later is left out")
    return tuple(said)
