"""Decides where a run's shards are, before the first step: hosts, links and free memory.

The decision itself is pure and lies in ``sharding``, the measurement in ``link_speed``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from remote_agent.strategies import spec_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan import sharding, verdict
from remote_agent.training.coordinator.plan.sharding import Site, Traffic
from remote_agent.training.coordinator.plan.verdict import Demand, Peer
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.errors import LostAtStart, PlacementError
from remote_agent.training.shared import rpc
from remote_agent.training.shared.device_profile import DeviceProfile
from remote_agent.training.shared.link_speed import LinkRates, survey
from remote_agent.training.shared.rpc import Actor
from remote_agent.training.wire.agreement import Codecs
from remote_agent.training.wire.layout import CHUNK_NUMBERS

CHUNKS_A_SHARD = 32
"""Chunks of a shard where the buffer is small: a step's start and end, with one direction busy, take one of them."""

SMALL_CHUNK = 1 << 14
"""Smaller chunks than this would cost more than they save."""

MIN_CHUNKS_A_SHARD = 4
"""In the smallest buffers, where several shards were asked for."""


@dataclass(frozen=True, kw_only=True)
class Siting:
    """Where the shards are.

    Attributes:
        hosts: one for each shard, in order.
        parts: of the buffer, one for each shard; they sum to 1.
        together: all workers can reach the only shard through shared memory.
        exchange_s: predicted seconds of a step's exchange; 0 where the links were not measured.
        reasons: for the plan.
    """

    hosts: tuple[str, ...]
    parts: tuple[float, ...]
    together: bool
    exchange_s: float = 0.0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The hosts that may hold a shard.

    Attributes:
        first: the first server's.
        together: all workers and the first server are on one computer.
        peers: the hosts with their links, the first server's first; empty where there is nothing to choose.
    """

    first: str
    together: bool
    peers: tuple[Peer, ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        """The same as places for shards."""
        return tuple(peer.site for peer in self.peers)


@dataclass(frozen=True, kw_only=True)
class Located:
    """The server, or a worker.

    Attributes:
        host: that it runs on.
        actor: its process.
        profile: of the worker's device; None: it is the server.
    """

    host: str
    actor: Actor
    profile: DeviceProfile | None = None


@dataclass(eq=False)
class _Place:
    """A host, or several with no network between them, of which it is the first."""

    host: str
    actor: Actor
    name: str
    workers: list[Located] = field(default_factory=list)


def surroundings(config: TrainingConfig, numel: int, actors: Sequence[Located]) -> Surroundings:
    """Find out where servers and workers are, and measure the links between them where it matters.

    Args:
        config: the run's.
        numel: numbers in the flat buffer.
        actors: the server that is there already, and then the workers.

    Raises:
        PlacementError: an actor was lost.
    """
    first, places = actors[0].host, _places(actors, apart=config.shards > 1)
    together = len(places) == 1 and bool(places[0].name)
    if len(places) == 1 or config.shards == 1 or (not config.shards and numel <= CHUNK_NUMBERS):
        return Surroundings(first=first, together=together)
    found = survey([place.host for place in places], [place.actor for place in places])
    peers = tuple(_peer(place, rates) for place, rates in zip(places, found, strict=True))
    return Surroundings(first=first, together=together, peers=peers)


def _peer(place: _Place, rates: LinkRates) -> Peer:
    site = Site(
        host=place.host,
        workers=len(place.workers),
        up=max(1.0, rates.up),
        down=max(1.0, rates.down),
        memory=rates.memory,
        reachable=rates.reachable,
    )
    names = tuple(dict.fromkeys((place.host, *(worker.host for worker in place.workers))))
    profiles = tuple(worker.profile for worker in place.workers if worker.profile is not None)
    return Peer(names=names, site=site, profiles=profiles)


def site(config: TrainingConfig, numel: int, codecs: Codecs, there: Surroundings) -> Siting:
    """Choose the hosts. Pure.

    Args:
        config: the run's.
        numel: numbers in the flat buffer.
        codecs: for the network.
        there: the hosts that may hold a shard.

    Raises:
        PlacementError: there is not enough memory, or too few hosts can be reached.
    """
    if not there.sites:
        return Siting(hosts=(there.first,), parts=(1.0,), together=there.together)
    sites = there.sites
    traffic = Traffic(
        gradient=codecs.gradients.size(numel),
        weights=codecs.weights.size(numel),
        held=sharding.COPIES * 4 * numel,
    )
    try:
        decision = sharding.decide(sites, traffic, config.shards)
    except ValueError as error:
        hint = (
            "free memory there, or let more hosts take part" if "GB" in str(error) else "look at the hosts' firewalls"
        )
        raise PlacementError(str(error), hint=hint, host=there.first) from None
    holders = [(each.host, part) for each, part in zip(sites, decision.parts, strict=True) if part]
    return Siting(
        hosts=tuple(host for host, _ in holders),
        parts=tuple(part for _, part in holders),
        together=False,
        exchange_s=decision.seconds,
        reasons=(*sharding.reasons(decision, sites, traffic), *_verdict(config, there, traffic)),
    )


def _verdict(config: TrainingConfig, there: Surroundings, traffic: Traffic) -> tuple[str, ...]:
    """Which hosts make a step shorter, where a step is one batch that all of them wait for."""
    if not spec_of(config.strategy).batches:
        return ()
    return verdict.reasons(there.peers, Demand(batch=config.batch_size, least=1, traffic=traffic, shards=config.shards))


def chunk_numbers(numel: int, shards: int) -> int:
    """Numbers of a chunk: so few that each shard of a small buffer has :data:`CHUNKS_A_SHARD`, if they stay useful."""
    if shards == 1:
        return CHUNK_NUMBERS
    useful = min(SMALL_CHUNK, math.ceil(numel / (shards * MIN_CHUNKS_A_SHARD)))
    return min(CHUNK_NUMBERS, max(useful, math.ceil(numel / (shards * CHUNKS_A_SHARD))))


def _places(actors: Sequence[Located], *, apart: bool) -> list[_Place]:
    """The hosts that may hold a shard, the first server's first; several without a network between count as one.

    With ``apart`` every host counts by itself, wherever it is.
    """
    calls = [located.actor.call("place") for located in actors]
    places: dict[str, _Place] = {}
    for located, call in zip(actors, calls, strict=True):
        host, actor = located.host, located.actor
        try:
            where = rpc.get(call, TRANSFER_S)
        except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
            cause = f"a worker or server was lost before the first step: {rpc.describe(error)}"
            kind = LostAtStart if isinstance(error, rpc.Lost) else PlacementError
            raise kind(cause, hint="look at the host's memory", host=host) from error
        known = places.setdefault(host if apart or not where else where, _Place(host, actor, where))
        known.workers += [located] if located.profile is not None else []
    return list(places.values())
