"""Opens the connections for gradients and weights; ``dataplane`` decides whether servers can hold the model."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from remote_agent.planning import sharding
from remote_agent.strategies import spec_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.members import Server, WorkerHandle
from remote_agent.training.coordinator.plan import siting
from remote_agent.training.coordinator.plan.siting import ShardHosts, Siting
from remote_agent.training.coordinator.processes.actors import Servers
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.errors import LostAtStart, ServerGone
from remote_agent.training.shared import dataplane, flat, rpc
from remote_agent.training.shared.dataplane import OptimizerFacts, StreamPlan, Usage
from remote_agent.training.shared.messages import Failed
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.wire import codecs
from remote_agent.training.wire.codecs import EXACT, Codecs
from remote_agent.training.wire.endpoint import Stream, StreamInfo
from remote_agent.training.wire.layout import plan_layout
from remote_agent.training.wire.shared_memory.client import SharedMemoryChannel

T = TypeVar("T")

SECRET_BYTES = 32

RELAY_COPIES = 5
"""A relay's memory over the weights' bytes: those of two steps, what is on its way to workers, and two steps' sums."""

MEMORY = SharedMemoryChannel.kind


@dataclass(frozen=True, kw_only=True)
class Path:
    """The open connections of a run.

    Attributes:
        servers: the shards, in the layout's order; empty if the workers reduce gradients among themselves.
        payload_bytes: bytes that a worker sends and receives in a step.
        reasons: for the plan: how gradients are exchanged, and why.
        names: names of the streamed parameters, in the order of the flat buffer.
        stream: the streamed parameters, to open the connections again; None: nothing is streamed.
        entry: data for a worker that joins during the run; None: nothing is streamed.
    """

    servers: tuple[Server, ...]
    payload_bytes: int
    reasons: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    stream: Stream | None = None
    entry: StreamInfo | None = None


def open_transport(
    config: TrainingConfig,
    model: nn.Module,
    optimizer: OptimizerFacts,
    usage: Usage,
    servers: Servers,
    members: Sequence[WorkerHandle],
    there: ShardHosts,
) -> Path:
    """Connect as planned, before the first step, with the shards on some of the hosts that are ``there``.

    Raises:
        LostAtStart: a server or worker was lost.
        PlacementError: a worker can't reach the server.
    """
    if not spec_of(config.strategy).servers:
        return _among_workers(model, usage, servers, members)
    numels = {name: parameter.numel() for name, parameter in flat.trained(model).items()}
    return _stream(config, dataplane.plan(numels, optimizer, usage), servers, members, there)


def _stream(
    config: TrainingConfig,
    plan: StreamPlan,
    servers: Servers,
    members: Sequence[WorkerHandle],
    there: ShardHosts,
) -> Path:
    memory = config.stream == "auto"
    chosen = codecs.create(config.codec)
    wanted = Codecs(chosen, chosen)
    numel = sum(plan.groups)
    where = siting.site(config, numel, wanted, there)
    shards = servers.on(where.hosts)
    agreed = EXACT if config.stream == "auto" and where.together else wanted
    layout = plan_layout(plan.groups, where.parts, sharding.chunk_numbers(numel, len(where.parts)))
    relay_hosts = _relay_hosts(numel, members, where, there) if layout.shards > 1 else frozenset[str]()
    stream = Stream(plan=plan, layout=layout, codecs=agreed, memory=memory, relay_hosts=relay_hosts)
    try:
        entry = serve(stream, shards)
    except ServerGone as error:  # there is nothing to restore yet: the run is made ready once more
        raise LostAtStart(error.cause, hint=error.hint, host=error.host) from error
    joined = [(member, member.call("join", entry.of(member.host))) for member in members]
    kinds: Counter[str] = Counter()
    for member, answer in joined:
        kinds[_from_worker(answer, member)] += 1
    ways = ", ".join(f"{count} over {kind}" for kind, count in sorted(kinds.items()))
    devices = Counter(member.host for member in members)
    relayed = [
        f"{host}'s {devices[host]} devices add up their gradients there: its link carries one, and the weights once"
        for host, _ in entry.relays
    ]
    reasons = (f"streamed to workers: {ways}", *_about_codec(config, kinds, agreed), *where.reasons, *relayed)
    return Path(
        servers=shards,
        payload_bytes=4 * layout.numel,
        reasons=reasons,
        names=plan.names,
        stream=stream,
        entry=entry,
    )


def _relay_hosts(numel: int, members: Sequence[WorkerHandle], where: Siting, there: ShardHosts) -> frozenset[str]:
    """Hosts with one of several shards, several devices, and room for what a relay holds."""
    devices = Counter(member.host for member in members)
    held = {
        host: (RELAY_COPIES + sharding.COPIES * part) * 4 * numel
        for host, part in zip(where.hosts, where.parts, strict=True)
    }
    return frozenset(host for host, size in held.items() if devices[host] > 1 and there.has_room(host, size))


def serve(stream: Stream, servers: Sequence[Server], kept: Ref[Any] | None = None) -> StreamInfo:
    """Let the shards serve with a new secret; a shard that served before forgets its state.

    Args:
        servers: the shards, in the layout's order.
        kept: the initial weights, as a worker kept them; None: those of the run's start.

    Raises:
        ServerGone: a shard was lost, or can't serve.
    """
    secret = secrets.token_bytes(SECRET_BYTES)
    # A lost shard may be on a host that has another one.
    relaying = {server.host: server for server in servers if server.host in stream.relay_hosts}
    calls = [
        server.actor.call("serve", stream, number, secret, kept, relaying.get(server.host) is server)
        for number, server in enumerate(servers)
    ]
    shards = tuple(_from_server(call, server.host) for server, call in zip(servers, calls, strict=True))
    entry = StreamInfo(plan=stream.plan, layout=stream.layout, shards=shards, secret=secret, codecs=stream.codecs)
    return dataclasses.replace(entry, relays=_relays(entry, relaying))


def _relays(entry: StreamInfo, relaying: Mapping[str, Server]) -> tuple[tuple[str, tuple[str, int]], ...]:
    """Have these servers relay for their hosts' workers; each host with the address there."""
    calls = {host: server.actor.call("relay", entry) for host, server in relaying.items()}
    return tuple((host, _from_server(call, host)) for host, call in calls.items())


def _among_workers(model: nn.Module, usage: Usage, servers: Servers, members: Sequence[WorkerHandle]) -> Path:
    """Open a run without servers: the parameter server, which was needed for the setup, ends."""
    buffers = rpc.put(flat.gather(flat.buffers(model, sorted(usage.buffers))))
    calls = [(member, member.call("join", buffers)) for member in members]
    for member, call in calls:
        _from_worker(call, member)
    servers.kill()
    size = sum(parameter.numel() * parameter.element_size() for parameter in flat.trained(model).values())
    return Path(servers=(), payload_bytes=usage.terms * size)


def _about_codec(config: TrainingConfig, kinds: Counter[str], agreed: Codecs) -> tuple[str, ...]:
    """Explain what the requested codec is used for."""
    if config.codec == "fp32":
        return ()
    if set(kinds) == {MEMORY}:
        return (f"codec={config.codec} has no effect: through shared memory numbers go as they are, fp32",)
    if agreed is EXACT:
        return (f"codec={config.codec} has no effect: no network lies between workers and shard, numbers go as fp32",)
    exact = "; gradients through shared memory stay fp32" if MEMORY in kinds else ""
    return (f"codec={config.codec} over the network, gradients and weights{exact}",)


def _from_worker(call: Ref[str | Failed], member: WorkerHandle) -> str:
    failure = f"{member.name} was lost before the first step"
    answer = rpc.get_at_start(call, TRANSFER_S, failure, hint="look at the host's memory", host=member.host)
    if isinstance(answer, Failed):
        raise answer.error(member.host)
    return answer


def _from_server(call: Ref[T | Failed], host: str) -> T:
    try:
        answer = rpc.get(call, TRANSFER_S)
    except rpc.NoAnswer as error:
        cause = f"the parameter server was lost: {rpc.describe(error)}"
        raise ServerGone(cause, hint="look at the host's memory", host=host) from error
    if isinstance(answer, Failed):
        raise ServerGone(answer.cause, hint=answer.hint, host=host)
    return answer
