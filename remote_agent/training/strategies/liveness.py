"""Who is still there: asked when something is late or lost, before anybody is blamed."""

from __future__ import annotations

import time
from collections.abc import Collection

from remote_agent.training import rpc
from remote_agent.training.deadlines import HEARTBEAT_S, PING_S
from remote_agent.training.errors import ServerGone
from remote_agent.training.messages import Failed
from remote_agent.training.session import Member, Session
from remote_agent.training.working.worker import PING

SERVER_HINT = "look at the host's memory and its log, then start the run again"


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


def server_gone(session: Session, host: str, cause: str) -> ServerGone:
    """The error that the shard on ``host`` was lost."""
    what = "the parameter server" if len(session.servers) == 1 else "a shard of the parameter server"
    return ServerGone(f"{what} was lost: {cause}", hint=SERVER_HINT, host=host)


def silent(members: Collection[Member]) -> set[Member]:
    """Those whose processes do not answer within :data:`HEARTBEAT_S`."""
    calls = {member: member.actor.call_in(PING, "ping") for member in members}
    deadline = time.monotonic() + HEARTBEAT_S
    found = set()
    for member, call in calls.items():
        try:
            rpc.get(call, max(0.0, deadline - time.monotonic()))
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
            found.add(member)
    return found
