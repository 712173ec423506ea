"""Which hosts make a synchronous step shorter, predicted from measured speeds and links. Pure.

A step with a set of hosts takes the time in which their devices compute the batch together (``shares``) and then that
of the exchange between them (``sharding``); one host alone exchanges nothing. The server's time, and what of the
exchange is hidden behind the computation, are not in the model, so differences below :data:`MARGIN` are not told apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remote_agent.training.coordinator.plan import sharding
from remote_agent.training.coordinator.plan.sharding import Site, Traffic
from remote_agent.training.coordinator.plan.shares import split, step_seconds
from remote_agent.training.shared.device_profile import DeviceProfile

MARGIN = 0.1
"""Part of a step's time below which a predicted difference says nothing."""

MAX_SUBSETS = 10
"""Up to so many hosts all subsets are tried; of more, the host that costs most is left out as long as that helps."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A host, or several on one computer, as it takes part in a step.

    Attributes:
        names: of its hosts.
        site: its link.
        profiles: of its devices; none: it can hold a shard only.
    """

    names: tuple[str, ...]
    site: Site
    profiles: tuple[DeviceProfile, ...]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a step asks of the hosts.

    Attributes:
        batch: samples of a step.
        least: samples of a slice that is not empty.
        traffic: bytes of its exchange.
        shards: that are wanted; 0: as many as pay.
    """

    batch: int
    least: int
    traffic: Traffic
    shards: int = 0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A step's predicted seconds with some hosts."""

    hosts: tuple[str, ...]
    compute_s: float
    exchange_s: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.compute_s + self.exchange_s


def estimate(peers: Sequence[Peer], demand: Demand) -> Estimate | None:
    """A step with these hosts; None: it does not fit into their memory, or too few of them can hold a shard."""
    profiles = [profile for peer in peers for profile in peer.profiles]
    try:
        cut = split(demand.batch, profiles, demand.least)
        sites = sorted((peer.site for peer in peers), key=lambda site: not site.reachable)
        shards = min(demand.shards, len(sites))
        exchange_s = sharding.decide(sites, demand.traffic, shards).seconds if len(sites) > 1 else 0.0
    except ValueError:
        return None
    if len(sites) == 1 and sites[0].most(demand.traffic.held) < 1:
        return None
    return Estimate(
        hosts=tuple(name for peer in peers for name in peer.names),
        compute_s=step_seconds(cut, profiles),
        exchange_s=exchange_s,
    )


def best(peers: Sequence[Peer], demand: Demand) -> Estimate | None:
    """The set of hosts with the shortest step, of equal ones the smallest; None: none can hold the job."""
    if len(peers) <= MAX_SUBSETS:
        sets: Iterable[Sequence[Peer]] = itertools.chain.from_iterable(
            itertools.combinations(peers, count) for count in range(1, len(peers) + 1)
        )
        return _shortest(estimate(chosen, demand) for chosen in sets)
    left, found = list(peers), estimate(peers, demand)
    while len(left) > 1:
        fewer = [(peer, estimate([other for other in left if other is not peer], demand)) for peer in left]
        peer, shorter = min(fewer, key=lambda each: each[1].seconds if each[1] is not None else math.inf)
        if shorter is None or (found is not None and shorter.seconds > found.seconds):
            break
        left.remove(peer)
        found = shorter
    return _shortest([found, *(estimate([peer], demand) for peer in peers)])


def reasons(peers: Sequence[Peer], demand: Demand) -> tuple[str, ...]:
    """For the plan: what bounds a step, which hosts make it shorter, and which would better be left out."""
    together = estimate(peers, demand)
    if together is None or len(peers) == 1:
        return ()
    parts = f"{together.compute_s:.3g} s of computing, then {together.exchange_s:.3g} s of exchange"
    told = [f"a step with all {len(together.hosts)} hosts: {parts}, predicted"]
    chosen = best(peers, demand)
    assert chosen is not None, "all of them can"
    if together.seconds > (1 + MARGIN) * chosen.seconds:
        rest = [name for name in together.hosts if name not in chosen.hosts]
        use = f"{chosen.hosts[0]} alone" if len(chosen.hosts) == 1 else ", ".join(chosen.hosts)
        told.append(
            f"{use} would be faster: {chosen.seconds:.3g} s a step, not {together.seconds:.3g} s:"
            f" leave {' and '.join(rest)} out (hetero-tui drain {rest[0]}{' ...' if rest[1:] else ''})"
        )
        return tuple(told)
    for peer in peers:
        if not peer.profiles:
            continue
        without = estimate([other for other in peers if other is not peer], demand)
        told.append(f"{' and '.join(peer.names)} {_about(together, without)}")
    return tuple(told)


def _about(together: Estimate, without: Estimate | None) -> str:
    """What one host does for a step with all."""
    if without is None:
        return "is needed: without it the job does not fit"
    gain = without.seconds / together.seconds - 1
    if gain >= MARGIN:
        return f"makes training {100 * gain:.0f}% faster"
    if gain > -MARGIN:
        return f"makes little difference ({100 * gain:+.0f}%)"
    return f"makes training {-100 * gain:.0f}% slower"


def _shortest(found: Iterable[Estimate | None]) -> Estimate | None:
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: (each.seconds, len(each.hosts)), default=None)
