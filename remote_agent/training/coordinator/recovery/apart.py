"""Finds hosts that do not reach each other, though the coordinator reaches both.

If a firewall or a router comes between two hosts, the processes on both answer, and both wait. Where servers hold the
weights, the shards of these hosts go to the coordinator's host, which all of them reach. Workers that exchange data
directly (``allreduce``, ``pipeline``) need each other: some leave the run, until all others reach each other.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.coordinator.processes.heartbeat import Heartbeat
from remote_agent.training.coordinator.recovery import policy
from remote_agent.training.coordinator.recovery.liveness import answer_of, server_gone
from remote_agent.training.coordinator.session import Session
from remote_agent.training.deadlines import PING_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import LINK

Pair = frozenset[str]
"""Two hosts that do not reach each other."""


def pairs(members: Sequence[WorkerHandle], heartbeat: Heartbeat) -> set[Pair]:
    """Let a worker on each host connect to all others; a host that does not answer is not judged."""
    of_host = {member.host: member for member in reversed(members)}
    opened = _answers(of_host, heartbeat, "link_open")
    addresses = {host: answer[0] for host, answer in opened.items() if answer is not None}
    asked = {host: of_host[host] for host in addresses}
    reached = _answers(asked, heartbeat, "link_reaches", tuple(addresses.values()))
    for member in asked.values():
        member.actor.call_in(LINK, "link_close")
    missing = {
        (host, other)
        for host, ways in reached.items()
        for other, way in zip(addresses, ways, strict=True)
        if way is None and other in reached
    }
    # One way may be all that is needed: of two stages, one connects to the other.
    return {frozenset(pair) for pair in missing if pair[::-1] in missing}


def _answers(members: Mapping[str, WorkerHandle], heartbeat: Heartbeat, method: str, *arguments: Any) -> dict[str, Any]:
    calls = {host: member.actor.call_in(LINK, method, *arguments) for host, member in members.items()}
    answers = {}
    for host, call in calls.items():
        with contextlib.suppress(*rpc.NoAnswer):
            answers[host] = answer_of(members[host], call, heartbeat, PING_S)
    return answers


def leaving(members: Sequence[WorkerHandle], heartbeat: Heartbeat) -> dict[WorkerHandle, policy.Apart]:
    """The workers without which all others reach each other, with the evidence; usually none."""
    if len({member.host for member in members}) < 2:
        return {}
    out = without([member.host for member in members], pairs(members, heartbeat))
    return {member: out[member.host] for member in members if member.host in out}


def without(hosts: Sequence[str], apart: set[Pair]) -> dict[str, policy.Apart]:
    """The hosts that leave: first the one with the most missing links, of equals the last in ``hosts``. Pure."""
    out: dict[str, policy.Apart] = {}
    left = apart
    while left:
        missing = Counter(host for pair in left for host in pair)
        worst = max(hosts, key=lambda host: (missing[host], hosts.index(host)))
        others = sorted(host for pair in left if worst in pair for host in pair - {worst})
        out[worst] = policy.Apart(_cause(worst, others))
        left = {pair for pair in left if worst not in pair}
    return out


def leave_shards(session: Session, heartbeat: Heartbeat) -> None:
    """Give up the shards on hosts that another host with a worker does not reach; their copies are restored here.

    Raises:
        ServerGone: there is one.
    """
    holders = {server.host for server in session.servers}
    here = placement.here(placement.living_nodes()).host
    if holders == {here}:
        return
    found = [pair for pair in pairs(session.members, heartbeat) if here not in pair and pair & holders]
    gone = sorted({host for pair in found for host in pair & holders})
    if gone:
        others = sorted({host for pair in found if gone[0] in pair for host in pair - {gone[0]}})
        raise server_gone(session, gone[0], _cause(gone[0], others), *gone[1:])


def _cause(host: str, others: Sequence[str]) -> str:
    way = "see to the network, or to a firewall, between them"
    return f"{host} does not reach {' and '.join(others)}, though all answer the head: {way}"
