"""Decides which hosts hold which part of the parameter server. Pure.

With the part ``w_i`` of the parameters on host ``i``, which has ``m_i`` of the ``m`` workers, its network device has to
carry in a step: out, its workers' gradients to the other shards and its shard's weights to the other workers; in, the
other workers' gradients and the other shards' weights (``g`` and ``v`` are bytes of a whole gradient and all weights)::

    out_i = m_i g (1 - w_i) + (m - m_i) v w_i        in_i = (m - m_i) g w_i + m_i v (1 - w_i)

Both directions and all hosts work at once (``wire``), so a step's exchange takes ``T = max_i max(out_i / up_i,
in_i / down_i)``. Each term is linear in its own ``w_i`` alone: for a given ``T`` every host allows an interval of
parts, and ``T`` can be held if the intervals' ends admit a sum of 1. The least such ``T`` is found by bisection.
Equal links and a worker on each of n hosts give equal parts, and the floor ``2 (n - 1) / n P b / B`` of a ring
all-reduce.

A host with a part may relay for its workers: to the others they are one then (``peers``). So ``m_i`` depends on whether
``w_i`` is 0. The parts are found once with what ``m_i`` is with a part, once with what it is without, and once with a
part on each host that would relay; the best of these is taken.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.wording import number

MIN_PART = 0.05
"""A smaller part than this is not worth a shard: its host is left out, or (where it was asked for) given this much."""

MIN_GAIN = 0.1
"""Several shards must make the exchange shorter by this part; one is simpler, and fewer hosts can be lost."""

MIN_GAIN_S = 0.002
"""And by these seconds."""

COPIES = 6
"""A shard's memory over its parameters' bytes: 4 for weights, sums and what is on its way, 2 for Adam's moments."""

CHUNK_NUMBERS = 1 << 17
"""Most numbers of a chunk: 512 KiB of float32."""

CHUNKS_A_SHARD = 32
"""Chunks of a shard where the buffer is small: a step's start and end, with one direction busy, take one of them."""

SMALL_CHUNK = 1 << 14
"""Smaller chunks than this would cost more than they save."""

MIN_CHUNKS_A_SHARD = 4
"""In the smallest buffers, where several shards were asked for."""

_HALVINGS = 60
_TINY = 1e-9
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Site:
    """A host that can hold a shard.

    Attributes:
        up: bytes/s that its link sends, > 0.
        down: bytes/s that its link receives, > 0.
        memory: bytes that are free for a shard; None: not known.
        reachable: all others can connect to it; if not, it holds no shard.
        peers: how many workers it has to the others where it holds a part of several; 0: as many as without.
    """

    host: str
    workers: int
    up: float
    down: float
    memory: int | None = None
    reachable: bool = True
    peers: int = 0

    @property
    def relayed(self) -> Site:
        """The same where its workers are relayed."""
        return dataclasses.replace(self, workers=self.peers or self.workers)

    def most(self, held: int) -> float:
        """The largest part of ``held`` bytes that it has room for, at most 1."""
        if not self.reachable:
            return 0.0
        return 1.0 if self.memory is None or not held else min(1.0, max(0, self.memory) / held)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that travel in a step, and that stay.

    Attributes:
        gradient: of one worker's whole gradient, on the wire.
        weights: of all new weights, on the wire.
        held: what all shards take together in memory.
    """

    gradient: int
    weights: int
    held: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided.

    Attributes:
        parts: one for each site, in their order; they sum to 1.
        seconds: predicted time of a step's exchange.
        alone_s: the same with everything on the first site.
    """

    parts: tuple[float, ...]
    seconds: float
    alone_s: float


def exchange_seconds(parts: Sequence[float], sites: Sequence[Site], traffic: Traffic) -> float:
    """Predicted time of a step's exchange with these parts: that of the busiest direction of any link."""
    several = sum(part > 0 for part in parts) > 1
    relayed = [site.relayed if part and several else site for part, site in zip(parts, sites, strict=True)]
    return _seconds(parts, relayed, traffic)


def _seconds(parts: Sequence[float], sites: Sequence[Site], traffic: Traffic) -> float:
    return max(
        max((base + slope * part) / rate for base, slope, rate in _directions(site, sites, traffic))
        for part, site in zip(parts, sites, strict=True)
    )


def decide(sites: Sequence[Site], traffic: Traffic, count: int = 0) -> Decision:
    """The parts that make a step's exchange shortest, within memory.

    Args:
        sites: hosts that can hold a shard; the first is preferred where it makes no difference.
        count: shards that are wanted, each with :data:`MIN_PART` or more; 0: as many as pay.

    Raises:
        ValueError: the sites' memory together is too small, or there are fewer usable sites than ``count``.
    """
    if count and sum(site.reachable for site in sites) < count:
        raise ValueError(f"{count} shards need {count} hosts that all others can connect to")
    alone = tuple(1.0 if position == 0 else 0.0 for position in range(len(sites)))
    alone_s = exchange_seconds(alone, sites, traffic)
    found = [_fixed_count(sites, traffic, count) if count else _worthwhile(sites, traffic)]
    if any(site.peers for site in sites):
        relayed = [site.relayed for site in sites]
        found.append(_fixed_count(relayed, traffic, count) if count else _worthwhile(relayed, traffic))
        found += [] if count else _with_relays(relayed, traffic, [site.peers > 0 for site in sites])
    parts = min(found, key=lambda each: exchange_seconds(each, sites, traffic))
    seconds = exchange_seconds(parts, sites, traffic)
    fits = sites[0].most(traffic.held) >= 1
    if not count and fits and alone_s - seconds < max(MIN_GAIN * alone_s, MIN_GAIN_S):
        parts, seconds = alone, alone_s
    return Decision(parts=parts, seconds=seconds, alone_s=alone_s)


def _worthwhile(sites: Sequence[Site], traffic: Traffic) -> tuple[float, ...]:
    """The best parts, without any that is too small to be worth a shard; where memory needs it, it stays."""
    most = [site.most(traffic.held) for site in sites]
    parts = _shortest(sites, traffic, [0.0] * len(sites), most)
    while small := [position for position, part in enumerate(parts) if 0 < part < MIN_PART]:
        most[min(small, key=parts.__getitem__)] = 0.0
        if sum(most) < 1:
            break
        parts = _shortest(sites, traffic, [0.0] * len(sites), most)
    return parts


def _with_relays(sites: Sequence[Site], traffic: Traffic, relays: Sequence[bool]) -> Sequence[tuple[float, ...]]:
    """The best parts with one on each site that relays, if there is room."""
    most = [site.most(traffic.held) for site in sites]
    least = [MIN_PART * (has and room >= MIN_PART) for has, room in zip(relays, most, strict=True)]
    return [_shortest(sites, traffic, least, most, even=True)] if sum(least) <= 1 else []


def _fixed_count(sites: Sequence[Site], traffic: Traffic, count: int) -> tuple[float, ...]:
    """The best parts on ``count`` sites: those with the largest in the best parts on any number, then by link."""
    most = [site.most(traffic.held) for site in sites]
    parts = _shortest(sites, traffic, [0.0] * len(sites), most)
    order = sorted(
        (position for position in range(len(sites)) if sites[position].reachable),
        key=lambda i: (parts[i] > _TINY, most[i] >= MIN_PART, parts[i], min(sites[i].up, sites[i].down), -i),
        reverse=True,
    )
    chosen = set(order[:count])
    least = [min(MIN_PART, 1 / count) if position in chosen else 0.0 for position in range(len(sites))]
    limits = [max(most[position], least[position]) if position in chosen else 0.0 for position in range(len(sites))]
    return _shortest(sites, traffic, least, limits, even=True)


def _shortest(
    sites: Sequence[Site], traffic: Traffic, least: Sequence[float], most: Sequence[float], even: bool = False
) -> tuple[float, ...]:
    """The parts within ``least`` and ``most`` with the shortest exchange."""
    if sum(most) < 1 - _TINY:
        has = sum(part * traffic.held for part in most)
        raise ValueError(f"the parameter server needs {traffic.held / 1e9:.2f} GB, and its hosts have {has / 1e9:.2f}")
    # A part between two has a time between theirs: with this one, any parts within the limits can be held.
    long = max(_seconds(least, sites, traffic), _seconds(most, sites, traffic), _TINY)
    short = 0.0
    for _ in range(_HALVINGS):
        middle = (short + long) / 2
        if _parts_within(middle, sites, traffic, least, most, even) is None:
            short = middle
        else:
            long = middle
    parts = _parts_within(long, sites, traffic, least, most, even)
    assert parts is not None, "the longer end can always be held"
    return parts


def _parts_within(
    seconds: float,
    sites: Sequence[Site],
    traffic: Traffic,
    least: Sequence[float],
    most: Sequence[float],
    even: bool,
) -> tuple[float, ...] | None:
    """Parts with an exchange of at most ``seconds``, or None if there are none."""
    lows, highs = [], []
    for site, low, high in zip(sites, least, most, strict=True):
        for base, slope, rate in _directions(site, sites, traffic):
            room = seconds * rate - base
            if slope > 0:
                high = min(high, room / slope)
            elif slope < 0:
                low = max(low, room / slope)
            elif room < -_TINY * base:
                return None
        if low > high + _TINY:
            return None
        lows.append(low)
        highs.append(max(low, high))
    if not sum(lows) <= 1 + _TINY or not sum(highs) >= 1 - _TINY:
        return None
    parts = _filled(lows, highs, even)
    parts = [part if part > _ROUNDING else 0.0 for part in parts]
    total = math.fsum(parts)
    return tuple(part / total for part in parts)


def _filled(lows: Sequence[float], highs: Sequence[float], even: bool) -> list[float]:
    """Parts between these limits that sum to 1: nearly ``even``, or as much as possible on the earlier sites."""
    if even:
        short, long = 0.0, 1.0
        for _ in range(_HALVINGS):
            level = (short + long) / 2
            filled = math.fsum(max(low, min(high, level)) for low, high in zip(lows, highs, strict=True))
            short, long = (level, long) if filled < 1 else (short, level)
        return [max(low, min(high, long)) for low, high in zip(lows, highs, strict=True)]
    left = 1.0 - math.fsum(lows)
    parts = []
    for low, high in zip(lows, highs, strict=True):
        more = max(0.0, min(high - low, left))
        left -= more
        parts.append(low + more)
    return parts


def _directions(site: Site, sites: Sequence[Site], traffic: Traffic) -> tuple[tuple[float, float, float], ...]:
    """For out and in: (bytes with no part here, further bytes with all of it here, bytes/s)."""
    own, others = site.workers, sum(each.workers for each in sites) - site.workers
    out = (own * traffic.gradient, others * traffic.weights - own * traffic.gradient, site.up)
    into = (own * traffic.weights, others * traffic.gradient - own * traffic.weights, site.down)
    return out, into


def chunk_numbers(numel: int, shards: int) -> int:
    """Numbers of a chunk: so few that each shard of a small buffer has :data:`CHUNKS_A_SHARD`, if they stay useful."""
    if shards == 1:
        return CHUNK_NUMBERS
    useful = min(SMALL_CHUNK, math.ceil(numel / (shards * MIN_CHUNKS_A_SHARD)))
    return min(CHUNK_NUMBERS, max(useful, math.ceil(numel / (shards * CHUNKS_A_SHARD))))


# --- In words --------------------------------------------------------------------------------------------------------


def reasons(decision: Decision, sites: Sequence[Site], traffic: Traffic) -> tuple[str, ...]:
    """For the plan: how much each host holds, and why."""
    holders = [(site, part) for site, part in zip(sites, decision.parts, strict=True) if part]
    rates = ", ".join(f"{site.host} {site.up / 1e6:.1f}/{site.down / 1e6:.1f}" for site in sites)
    measured = f"links measured, MB/s out/in: {rates}"
    if len(holders) == 1:
        found = [f"one shard of the parameter server, on {holders[0][0].host}: more would not help; {measured}"]
    else:
        shares = ", ".join(f"{site.host} {100 * part:.0f}%" for site, part in holders)
        times = f"{number(decision.seconds)} s, {number(decision.alone_s)} s with all of it on {sites[0].host}"
        found = [
            f"parameter server on {len(holders)} hosts: {shares}; predicted exchange of a step: {times}; {measured}"
        ]
    fastest = max(min(site.up, site.down) for site in sites)
    for site, part in zip(sites, decision.parts, strict=True):
        if not site.reachable:
            found.append(f"{site.host} holds no shard: not all others can connect to it")
        elif site.most(traffic.held) <= min(part + _TINY, 1 - _TINY):
            found.append(f"{site.host} holds {100 * part:.0f}%: its memory has no room for more")
        elif not part and len(holders) > 1:
            why = "its link is slow" if min(site.up, site.down) < fastest / 2 else "it would not make a step shorter"
            found.append(f"{site.host} holds no shard: {why}")
    return tuple(found)
