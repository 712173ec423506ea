"""Going on when shards of the parameter server were lost: back to the newest copy, and the steps since made again.

In this order: workers that wait for the shards are freed, and those that do not answer are lost too; a new shard is
started for each lost one, on the coordinator's host, where the copy is; all shards, the living ones too, are given the
copied step's state, and serve anew, with a new secret, so that one that was only cut off can't disturb; all workers go
back to the weights that they have kept of that step. The steps since are then made as any others: with the same samples
of the order, each counted once, as the record of slices says which of its lines are superseded. (Where no worker waits
for a whole step they are cut into other slices, applied in another order: what comes out is as good, and not the same.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Sequence
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
from remote_agent.training.errors import LostAtStart, PlacementError, ServerGone, WeightsGone
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import EXCHANGE, PING, Failed
from remote_agent.training.wire.endpoint import StreamInfo
from remote_agent.training.wire.layout import Layout

LOG = logging.getLogger(__name__)

MAX_RESTORES = 5
"""Times that shards may be lost one after the other with no new step made in between."""

SPARE_BYTES = 1 << 30
"""Memory that has to be free for a spare process, which takes about a fifth of that."""

_HINT = "resume the run: it goes on from its newest checkpoint"


class Restorer:
    """Goes back to a copy whenever shards are lost, until that does not help any more.

    Args:
        host: the coordinator's, for events.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._furthest = self._failed_attempts = 0

    def made(self, step: int) -> None:
        """A step was made: if none was as far before, the losses up to now are forgotten."""
        if step > self._furthest:
            self._furthest, self._failed_attempts = step, 0

    def restore(self, session: Session, copy: Copy | None, lost: ServerGone, step: int) -> tuple[Session, Copy]:
        """As :func:`restore`, again if further shards are lost meanwhile; with the copy that the run went back to.

        Raises:
            ServerGone: it can't be done, or was done :data:`MAX_RESTORES` times in vain.
            WeightsGone: there is no copy yet, as after a takeover.
        """
        if copy is None:
            raise WeightsGone(lost.cause, hint=_HINT, host=lost.host) from lost
        while True:
            self._failed_attempts += 1
            if self._failed_attempts > MAX_RESTORES:
                raise lost
            try:
                return restore(session, copy, lost, step, self._host), copy
            except ServerGone as error:
                if error is lost:
                    raise
                lost = error


def restore(session: Session, copy: Copy, lost: ServerGone, step: int, host: str) -> Session:
    """Bring everything back to ``copy``.

    Args:
        session: the run's, whose strategy has ended with ``lost``.
        copy: the newest whole one.
        lost: what happened.
        step: the one that was under way.
        host: the coordinator's, for events.

    Returns:
        The session to go on with.

    Raises:
        ServerGone: it can't be done (``lost`` itself), or another shard was lost meanwhile.
        WeightsGone: no worker is left that has the copied step's weights.
        TrainingError: as :meth:`Servers.further`.
    """
    if not is_restorable(session) or session.stream is None or session.pool is None:
        raise lost
    began = time.monotonic()
    session.journal.write(ServerLost, host=lost.host, step=step, cause=lost.cause)
    living = _free_workers(session, step, gone=lost.host if lost.known else "")
    servers = _complete(session, living)
    hosts = [f"{before.host} -> {now.host}" for before, now in zip(session.servers, servers, strict=True)]
    LOG.info("step %d: shards (%s) are restored from the copy of step %d", step, ", ".join(hosts), copy.step)
    with Heartbeat() as heartbeat:
        heartbeat.watch([member.actor for member in session.members])
        try:
            _load(session, servers, copy)
            kept = rpc.put(copy.weights) if copy.weights is not None else _weights(session, copy, servers, heartbeat)
            entry = transfer.serve(session.stream, servers, kept)
        except ServerGone:
            for before, new in zip(session.servers, servers, strict=True):
                if new is not before:
                    new.actor.kill()  # the next attempt begins with those that were there
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
        notes=_notes(session, servers, step - 1 - copy.step, time.monotonic() - began),
    )
    order = session.order.going_on(copy.step, copy.position)
    takeover = Takeover(coordinator=session.coordinator) if session.takeover is not None else None
    return dataclasses.replace(session, servers=servers, order=order, keeping=KeepSchedule(), takeover=takeover)


def prepare(session: Session) -> None:
    """Have a process ready that a lost shard can be restored in, where this host has room for it; waits for nothing."""
    if not is_restorable(session) or session.pool is None or session.pool.spare is not None:
        return
    if psutil.virtual_memory().available > SPARE_BYTES:
        # A cluster that is not well has other troubles; without a spare a restore takes longer, and that is all.
        with contextlib.suppress(PlacementError, rpc.Unexpected):
            session.pool.have_spare(placement.here(placement.living_nodes()).host)


def part_of(copy: Copy, shapes: Shapes, layout: Layout, shard: int) -> Resumption:
    """What shard number ``shard`` needs of ``copy``: nothing of the other shards' state travels to it."""
    chunks = [layout.chunks[chunk] for chunk in layout.by_shard[shard]]
    own = {(chunk.begin, chunk.end): cut(copy.state.optimizer, shapes, chunk.begin, chunk.end) for chunk in chunks}
    return Resumption(step=copy.step, pieces=own)


# --- What is left ----------------------------------------------------------------------------------------------------


def _free_workers(session: Session, step: int, gone: str) -> list[bool]:
    """Have the workers give up what they wait for; says of each shard whether it answers.

    Workers that do not answer are lost. The shard on host ``gone`` is known to be, and not asked.

    Raises:
        TrainingError: one answers that it has failed by itself, which another one would too.
    """
    freeing = [(member, member.call_in(PING, "abandon")) for member in session.members]
    # Once this is answered, no worker waits for an exchange with the old shards any more.
    freeing += [(member, member.actor.call_in(EXCHANGE, "place")) for member in session.members]
    asking = [(server, server.actor.call("ping") if server.host != gone else None) for server in session.servers]
    deadline = time.monotonic() + HEARTBEAT_S
    answers = []
    for server, call in asking:
        if call is None:
            answers.append(False)
            continue
        try:
            failed = rpc.get(call, max(0.0, deadline - time.monotonic()))
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
            answers.append(False)
            continue
        if isinstance(failed, Failed):
            raise failed.error(server.host)
        answers.append(True)
    for member, freed in freeing:
        try:
            rpc.get(freed, max(0.0, deadline - time.monotonic()))
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
            if member in session.members:
                lose(session, member, step, rpc.describe(error))
    return answers


# --- Shards ----------------------------------------------------------------------------------------------------------


def _complete(session: Session, living: Sequence[bool]) -> tuple[Server, ...]:
    """The shards in the layout's order, with a new one, on this host, in the place of each lost one."""
    assert session.pool is not None, "lost shards can be started again"
    for server, lives in zip(session.servers, living, strict=True):
        if not lives:
            server.actor.kill()  # it may only be cut off
    here = placement.here(placement.living_nodes())
    try:
        new = iter(session.pool.further(here.host, list(living).count(False)))
    except LostAtStart as error:
        raise ServerGone(error.cause, hint=_HINT, host=here.host) from error
    return tuple(server if lives else next(new) for server, lives in zip(session.servers, living, strict=True))


def _load(session: Session, servers: Sequence[Server], copy: Copy) -> None:
    """Hand each shard its part of the copied state."""
    assert session.stream is not None, "the shards are streamed to"
    calls = []
    for number, server in enumerate(servers):
        part = part_of(copy, session.shapes, session.stream.layout, number)
        calls.append((server, server.actor.call("restore", rpc.put(part))))
    for server, call in calls:
        try:
            rpc.get(call, SERVER_S)
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
            cause = f"a shard was lost while it was restored: {rpc.describe(error)}"
            raise ServerGone(cause, hint=_HINT, host=server.host) from error


# --- Workers ---------------------------------------------------------------------------------------------------------


def _weights(session: Session, copy: Copy, servers: Sequence[Server], heartbeat: Heartbeat) -> rpc.Ref[Any]:
    """The copied step's weights, out of the memory of a worker that is alive, on a shard's host if there is one."""
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
    """Bring all workers to the copied step, and to the new shards; one that is lost meanwhile is left out."""
    calls = [
        (
            member,
            member.call("rejoin", None if member.actor.key in copy.holders else kept, copy.step, entry),
        )
        for member in session.members
    ]
    for member, call in calls:
        try:
            answer = answer_of(member, call, heartbeat, TRANSFER_S)
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
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
