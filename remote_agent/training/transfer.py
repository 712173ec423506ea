"""Opens the way that gradients and weights will go in a run; which one it is ``dataplane`` decides."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from remote_agent.training import codecs, dataplane, flat, rpc
from remote_agent.training.channels import Door
from remote_agent.training.config import TrainingConfig
from remote_agent.training.dataplane import OptimizerFacts, StreamPlan, Usage
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.errors import JobError, PlacementError, ServerGone
from remote_agent.training.exchange import EXACT, Codecs, plan_layout
from remote_agent.training.flat import Payload
from remote_agent.training.lane import LaneClient
from remote_agent.training.messages import Failed
from remote_agent.training.rpc import Actor, Ref
from remote_agent.training.session import Member

T = TypeVar("T")

SECRET_BYTES = 32

SYNC_HINT = "train with strategy=sync, or use float32 and GroupNorm in the place of batch normalisation"

MEMORY = LaneClient.kind


@dataclass(frozen=True, kw_only=True)
class Path:
    """An open way.

    Attributes:
        weights: the first weights as a Ray object; None when they are streamed.
        payload_bytes: what a worker gets and gives in a step.
        reasons: for the plan: which way it is, and why.
    """

    weights: Ref[Payload] | None
    payload_bytes: int
    reasons: tuple[str, ...]


def open_path(
    config: TrainingConfig,
    model: nn.Module,
    optimizer: OptimizerFacts,
    usage: Usage,
    server: Actor,
    server_host: str,
    crew: Sequence[Member],
) -> Path:
    """Decide and connect, before the first step.

    Raises:
        ServerGone: the server was lost.
        PlacementError: a worker was lost, or can't reach the server.
        JobError: the strategy needs streams, and the model can't be streamed.
    """
    local = config.strategy == "local_sgd"
    if local:
        # The job's optimizer works on the workers, on whole parameters; what the shards step with is elementwise.
        optimizer = dataclasses.replace(optimizer, elementwise=True)
    parameters = flat.trained(model)
    dtypes = {name: str(parameter.dtype).removeprefix("torch.") for name, parameter in parameters.items()}
    found = dataplane.obstacles(config.stream != "off", dtypes, optimizer, usage)
    if not found:
        numels = {name: parameter.numel() for name, parameter in parameters.items()}
        return _stream(config, dataplane.plan(numels, optimizer, usage), server, server_host, crew)
    if local:
        cause = f"strategy={config.strategy} needs a model that can be streamed: {'; '.join(found)}"
        raise JobError(cause, hint=SYNC_HINT)
    weights: Ref[Payload] = server.call("begin", sorted(usage.buffers))
    size = flat.size_bytes(_from_server(weights, server_host))
    reasons = [f"sent as Ray objects: {'; '.join(found)}"]
    if config.codec != "fp32":
        reasons.append(f"codec={config.codec} has no effect: it is for streams")
    return Path(weights=weights, payload_bytes=size, reasons=tuple(reasons))


def _stream(config: TrainingConfig, plan: StreamPlan, server: Actor, server_host: str, crew: Sequence[Member]) -> Path:
    memory = config.stream == "auto"
    chosen = codecs.create(config.codec, topk_fraction=config.topk_fraction)
    agreed = Codecs(chosen, chosen)
    if memory and chosen.lossy and _all_in_one_place(server, server_host, crew):
        agreed = EXACT
    secret = secrets.token_bytes(SECRET_BYTES)
    servers = [server]  # one shard on each of them
    layout = plan_layout(plan.groups, [1.0] * len(servers))
    calls = [each.call("serve", plan, layout, number, secret, memory, agreed) for number, each in enumerate(servers)]
    doors = []
    for call in calls:
        door = _from_server(call, server_host)
        if isinstance(door, Failed):
            raise ServerGone(door.cause, hint=door.hint, host=server_host)
        assert isinstance(door, Door)
        doors.append(door)
    joined = [(member, member.actor.call("join", plan, layout, doors, secret, agreed)) for member in crew]
    kinds: Counter[str] = Counter()
    for member, answer in joined:
        kind = _from_worker(answer, member)
        if isinstance(kind, Failed):
            raise kind.error(member.host)
        kinds[str(kind)] += 1
    ways = ", ".join(f"{count} over {kind}" for kind, count in sorted(kinds.items()))
    reasons = (f"streamed to workers: {ways}", *_about_codec(config, kinds))
    return Path(weights=None, payload_bytes=4 * layout.numel, reasons=reasons)


def _all_in_one_place(server: Actor, server_host: str, crew: Sequence[Member]) -> bool:
    """Whether all workers reach the server through memory: then there is no network for a codec to spare."""
    calls = [(member, member.actor.call("place")) for member in crew]
    here = _from_server(server.call("place"), server_host)
    return bool(here) and all(_from_worker(call, member) == here for member, call in calls)


def _about_codec(config: TrainingConfig, kinds: Counter[str]) -> tuple[str, ...]:
    """What a codec that was asked for is used for."""
    if config.codec == "fp32":
        return ()
    if set(kinds) == {MEMORY}:
        return (f"codec={config.codec} has no effect: through shared memory numbers go as they are, fp32",)
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
