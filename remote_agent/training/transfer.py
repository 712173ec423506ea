"""Opens the way that gradients and weights will go in a run; which one it is ``dataplane`` decides."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from remote_agent.training import codecs, dataplane, flat, rpc
from remote_agent.training.actors import Servers
from remote_agent.training.codecs import BFloat16
from remote_agent.training.config import STALE_STRATEGIES, TrainingConfig
from remote_agent.training.dataplane import OptimizerFacts, StreamPlan, Usage
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.errors import JobError, PlacementError, ServerGone
from remote_agent.training.exchange import EXACT, Codecs, Layout, plan_layout
from remote_agent.training.flat import Payload
from remote_agent.training.lane import LaneClient
from remote_agent.training.messages import Failed
from remote_agent.training.placing.siting import chunk_numbers, site
from remote_agent.training.rpc import Ref
from remote_agent.training.session import Member, Server
from remote_agent.training.working.channels import Door, Entry

T = TypeVar("T")

SECRET_BYTES = 32

SYNC_HINT = "train with strategy=sync, or use float32 and GroupNorm in the place of batch normalisation"

MEMORY = LaneClient.kind


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What is streamed, and how it is cut: it stays the same when a shard goes to another host.

    Attributes:
        plan: which parameters.
        layout: onto which shards.
        codecs: for the network.
        memory: workers may use shared memory where a shard is on their computer.
    """

    plan: StreamPlan
    layout: Layout
    codecs: Codecs
    memory: bool


@dataclass(frozen=True, kw_only=True)
class Path:
    """An open way.

    Attributes:
        servers: the shards, in the layout's order; the only server where weights are not streamed.
        weights: the first weights as a Ray object; None when they are streamed.
        payload_bytes: what a worker gets and gives in a step.
        reasons: for the plan: which way it is, and why.
        names: of the streamed parameters, in the order of the flat buffer.
        stream: what is streamed and how, to open the way again; None when nothing is.
        entry: for a worker that joins while the run is on; None when nothing is streamed.
    """

    servers: tuple[Server, ...]
    weights: Ref[Payload] | None
    payload_bytes: int
    reasons: tuple[str, ...]
    names: tuple[str, ...] = ()
    stream: Stream | None = None
    entry: Entry | None = None


def open_path(
    config: TrainingConfig,
    model: nn.Module,
    optimizer: OptimizerFacts,
    usage: Usage,
    servers: Servers,
    crew: Sequence[Member],
) -> Path:
    """Decide and connect, before the first step.

    Raises:
        ServerGone: the server was lost.
        PlacementError: a worker was lost, or can't reach the server.
        JobError: the strategy needs streams, and the model can't be streamed.
    """
    if config.strategy == "allreduce":
        return _among_workers(model, usage, servers, crew)
    local = config.strategy == "local_sgd"
    if local:
        # The job's optimizer works on the workers, on whole parameters; what the shards step with is elementwise.
        optimizer = dataclasses.replace(optimizer, elementwise=True)
    parameters = flat.trained(model)
    dtypes = {name: str(parameter.dtype).removeprefix("torch.") for name, parameter in parameters.items()}
    found = dataplane.obstacles(config.stream != "off", dtypes, optimizer, usage)
    if not found:
        numels = {name: parameter.numel() for name, parameter in parameters.items()}
        return _stream(config, dataplane.plan(numels, optimizer, usage), servers, crew)
    if local or config.strategy in STALE_STRATEGIES:
        cause = f"strategy={config.strategy} needs a model that can be streamed: {'; '.join(found)}"
        raise JobError(cause, hint=SYNC_HINT)
    server = servers.first
    weights: Ref[Payload] = server.actor.call("begin", sorted(usage.buffers))
    begun: Payload | Failed = _from_server(weights, server.host)
    if isinstance(begun, Failed):
        raise begun.error(server.host)
    reasons = [f"sent as Ray objects: {'; '.join(found)}"]
    unused = (("codec", config.codec, "fp32"), ("shards", config.shards, 0))
    reasons += [f"{name}={value} has no effect: it is for streams" for name, value, usual in unused if value != usual]
    size = flat.size_bytes(begun)
    return Path(servers=(server,), weights=weights, payload_bytes=size, reasons=tuple(reasons))


def _stream(config: TrainingConfig, plan: StreamPlan, servers: Servers, crew: Sequence[Member]) -> Path:
    stale = config.strategy in STALE_STRATEGIES
    memory = config.stream == "auto" and not stale
    chosen = codecs.create(config.codec, topk_fraction=config.topk_fraction)
    # Without common steps there are no differences between them to send: weights go whole, rounded at most.
    wanted = Codecs(chosen, chosen) if not stale else Codecs(chosen, BFloat16() if chosen.lossy else chosen)
    numel = sum(plan.groups)
    siting = site(config, numel, wanted, servers, crew)
    agreed = EXACT if config.stream == "auto" and siting.together else wanted
    layout = plan_layout(plan.groups, siting.parts, chunk_numbers(numel, len(siting.parts)))
    stream = Stream(plan=plan, layout=layout, codecs=agreed, memory=memory)
    door = serve(stream, siting.servers)
    joined = [(member, member.actor.call("join", plan, layout, door.doors, door.secret, agreed)) for member in crew]
    kinds: Counter[str] = Counter()
    for member, answer in joined:
        kind = _from_worker(answer, member)
        if isinstance(kind, Failed):
            raise kind.error(member.host)
        kinds[str(kind)] += 1
    ways = ", ".join(f"{count} over {kind}" for kind, count in sorted(kinds.items()))
    reasons = (f"streamed to workers: {ways}", *_about_codec(config, kinds, agreed), *siting.reasons)
    return Path(
        servers=siting.servers,
        weights=None,
        payload_bytes=4 * layout.numel,
        reasons=reasons,
        names=plan.names,
        stream=stream,
        entry=door,
    )


def serve(stream: Stream, servers: Sequence[Server], kept: Ref[Any] | None = None) -> Entry:
    """Have the shards serve from now on, with a new secret; one that did before forgets what it held.

    Args:
        stream: what.
        servers: the shards, in the layout's order.
        kept: the weights to begin with, as a worker kept them; None: those of the run's beginning.

    Raises:
        ServerGone: a shard was lost, or can't serve.
    """
    secret = secrets.token_bytes(SECRET_BYTES)
    calls = [
        server.actor.call("serve", stream.plan, stream.layout, number, secret, stream.memory, stream.codecs, kept)
        for number, server in enumerate(servers)
    ]
    doors = []
    for server, call in zip(servers, calls, strict=True):
        door = _from_server(call, server.host)
        if isinstance(door, Failed):
            raise ServerGone(door.cause, hint=door.hint, host=server.host)
        assert isinstance(door, Door)
        doors.append(door)
    return Entry(plan=stream.plan, layout=stream.layout, doors=tuple(doors), secret=secret, codecs=stream.codecs)


def _among_workers(model: nn.Module, usage: Usage, servers: Servers, crew: Sequence[Member]) -> Path:
    """The workers reduce gradients among themselves: the parameter server has said what it knows, and ends."""
    if usage.changed:
        cause = f"strategy=allreduce: the model itself changes {', '.join(sorted(usage.changed))} in training"
        raise JobError(cause, hint="train with strategy=sync, which sends the weights anew in every step")
    buffers = rpc.put(flat.gather(flat.buffers(model, sorted(usage.buffers))))
    calls = [(member, member.actor.call("join_reduction", buffers)) for member in crew]
    for member, call in calls:
        failed: Failed | None = _from_worker(call, member)
        if failed is not None:
            raise failed.error(member.host)
    servers.first.actor.kill()
    size = sum(parameter.numel() * parameter.element_size() for parameter in flat.trained(model).values())
    reason = f"{len(crew)} workers reduce gradients among themselves (gloo), and each makes the optimizer's step"
    return Path(servers=(servers.first,), weights=None, payload_bytes=size, reasons=(reason,))


def _about_codec(config: TrainingConfig, kinds: Counter[str], agreed: Codecs) -> tuple[str, ...]:
    """What a codec that was asked for is used for."""
    if config.codec == "fp32":
        return ()
    if set(kinds) == {MEMORY}:
        return (f"codec={config.codec} has no effect: through shared memory numbers go as they are, fp32",)
    if agreed is EXACT:
        return (f"codec={config.codec} has no effect: no network lies between workers and shard, numbers go as fp32",)
    if config.strategy in STALE_STRATEGIES:
        return (f"codec={config.codec} over the network for gradients; weights go as {agreed.weights.name}",)
    exact = "; gradients through shared memory stay fp32" if MEMORY in kinds else ""
    return (f"codec={config.codec} over the network, gradients and weights{exact}",)


def _from_worker(call: Ref[T], member: Member) -> T:
    try:
        return rpc.get(call, TRANSFER_S)
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
        cause = f"{member.name} was lost before the first step: {rpc.describe(error)}"
        raise PlacementError(cause, hint="look at the host's memory", host=member.host) from error


def _from_server(call: Ref[T], host: str) -> T:
    try:
        return rpc.get(call, TRANSFER_S)
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
        cause = f"the parameter server was lost: {rpc.describe(error)}"
        raise ServerGone(cause, hint="look at the host's memory", host=host) from error
