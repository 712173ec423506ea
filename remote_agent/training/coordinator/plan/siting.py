"""Decides where a run's shards are, before the first step: hosts, links and free memory.

The decision itself is pure and lies in ``sharding``, the measurement in ``link_speed``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from remote_agent.planning import sharding
from remote_agent.planning.sharding import Site, Traffic
from remote_agent.training.config import TrainingConfig
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.errors import PlacementError
from remote_agent.training.shared import rpc
from remote_agent.training.shared.link_speed import LinkRates, survey
from remote_agent.training.shared.rpc import Actor
from remote_agent.training.wire.codecs import Codecs


@dataclass(frozen=True, kw_only=True)
class Siting:
    """Where the shards are.

    Attributes:
        hosts: one for each shard, in order.
        parts: of the buffer, one for each shard; they sum to 1.
        together: all workers can reach the only shard through shared memory.
    """

    hosts: tuple[str, ...]
    parts: tuple[float, ...]
    together: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Computer:
    """A host, or several with no network between them.

    Attributes:
        hosts: their names; the one that was asked comes first.
        workers: of each of them.
        rates: of its link; None: not measured.
    """

    hosts: tuple[str, ...]
    workers: Mapping[str, int]
    rates: LinkRates | None

    def site(self) -> Site:
        """The same as a place for a shard."""
        assert self.rates is not None, "the links were measured"
        return Site(
            host=self.hosts[0],
            workers=sum(self.workers.values()),
            peers=sum(min(1, count) for count in self.workers.values()),
            up=max(1.0, self.rates.up),
            down=max(1.0, self.rates.down),
            memory=self.rates.memory,
            reachable=self.rates.reachable,
        )


@dataclass(frozen=True, kw_only=True)
class ShardHosts:
    """The hosts that may hold a shard.

    Attributes:
        first: the first server's.
        together: all workers and the first server are on one computer.
        computers: the first server's first.
    """

    first: str
    together: bool
    computers: tuple[Computer, ...]

    def sites(self) -> tuple[Site, ...]:
        """Places for shards; none where the links were not measured."""
        return tuple(computer.site() for computer in self.computers if computer.rates is not None)

    def has_room(self, host: str, size: float) -> bool:
        """Whether a host has so many bytes free, as far as that is known."""
        rates = next((computer.rates for computer in self.computers if host in computer.hosts), None)
        return rates is None or rates.memory >= size

    def of(self, hosts: Collection[str]) -> ShardHosts:
        """With these hosts only, of which one becomes the first if that is not among them."""
        kept = []
        for computer in self.computers:
            names = tuple(name for name in computer.hosts if name in hosts)
            workers = {name: count for name, count in computer.workers.items() if name in hosts}
            kept += [Computer(hosts=names, workers=workers, rates=computer.rates)] if names else []
        first = self.first if self.first in hosts else kept[0].hosts[0]
        return ShardHosts(first=first, together=len(kept) == 1, computers=tuple(kept))


@dataclass(frozen=True, kw_only=True)
class Located:
    """The server, or a worker; ``computes``: it is a worker."""

    host: str
    actor: Actor
    computes: bool = True


@dataclass(eq=False)
class _Place:
    """A host, or several with no network between them, of which it is the first."""

    host: str
    actor: Actor
    name: str
    workers: dict[str, int] = field(default_factory=dict)


def shard_hosts(config: TrainingConfig, numel: int, actors: Sequence[Located], *, plans: bool = False) -> ShardHosts:
    """Find out where servers and workers are, and measure the links between them where it matters.

    Args:
        numel: numbers in the flat buffer.
        actors: the server that is there already, and then the workers.
        plans: the links decide about more than shards.

    Raises:
        PlacementError: an actor was lost.
    """
    first, places = actors[0].host, _places(actors, apart=config.shards > 1)
    together = len(places) == 1 and bool(places[0].name)
    rates: Sequence[LinkRates | None] = [None] * len(places)
    is_small = config.shards == 1 or (not config.shards and numel <= sharding.CHUNK_NUMBERS)
    if len(places) > 1 and (plans or not is_small):
        rates = survey([place.host for place in places], [place.actor for place in places], alone=plans)
    computers = tuple(
        Computer(hosts=tuple(dict.fromkeys((place.host, *place.workers))), workers=place.workers, rates=rate)
        for place, rate in zip(places, rates, strict=True)
    )
    return ShardHosts(first=first, together=together, computers=computers)


def site(config: TrainingConfig, numel: int, codecs: Codecs, there: ShardHosts) -> Siting:
    """Choose the hosts. Pure.

    Args:
        numel: numbers in the flat buffer.
        there: the hosts that may hold a shard.

    Raises:
        PlacementError: there is not enough memory, or too few hosts can be reached.
    """
    sites = there.sites()
    if len(sites) < 2 or config.shards == 1 or (not config.shards and numel <= sharding.CHUNK_NUMBERS):
        return Siting(hosts=(there.first,), parts=(1.0,), together=there.together)
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
        reasons=sharding.reasons(decision, sites, traffic),
    )


def _places(actors: Sequence[Located], *, apart: bool) -> list[_Place]:
    """The hosts that may hold a shard, the first server's first; several without a network between count as one.

    With ``apart`` every host counts by itself, wherever it is.
    """
    calls = [located.actor.call("place") for located in actors]
    places: dict[str, _Place] = {}
    for located, call in zip(actors, calls, strict=True):
        host, actor = located.host, located.actor
        failure = "a worker or server was lost before the first step"
        where = rpc.get_at_start(call, TRANSFER_S, failure, hint="look at the host's memory", host=host)
        known = places.setdefault(host if apart or not where else where, _Place(host, actor, where))
        known.workers[host] = known.workers.get(host, 0) + located.computes
    return list(places.values())
