"""Predicts a step whose workers exchange with a parameter server, from the links, or its lower bound. Pure.

Up to :data:`MAX_SIMULATED` workers the exchange is simulated chunk by chunk (``exchange``); else the busiest channel or
shard bounds it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from remote_agent.planning.channels import Network
from remote_agent.planning.exchange import Exchange, Exchanged, Sender, peers
from remote_agent.planning.survey import Survey, wire_bytes
from remote_agent.planning.ways import Way

STEPS = 3
"""Steps that are simulated one after the other: the first is longer, as all workers begin it at once."""

REPLAY_S = 1.0
"""What a lost shard should cost at most beside its new start: the steps since the copy, in seconds of training. After a
step that is copied all workers begin the next one at the same time; else each begins once it has the weights."""

MAX_SIMULATED = 24
"""Up to so many workers the exchange is simulated chunk by chunk; of more, its bound is taken."""

SIMULATED = "links, simulated chunk by chunk"
"""The source of a term that is not a bound."""


def served_step(
    survey: Survey, way: Way, parts: Mapping[str, float], senders: Sequence[Sender], *, bound: bool = False
) -> tuple[float, Exchanged]:
    """Seconds of a step among others like it, and what the channels did in one."""
    if bound or len(senders) > MAX_SIMULATED:
        return _busiest(survey, way, parts, senders, after=not bound)
    exchange = Exchange(survey, parts, _codec(survey, way))
    begins: tuple[float, ...] = (0.0,) * len(senders)
    ends: list[float] = []
    for _ in range(STEPS):
        exchanged = exchange.step(senders, begins)
        begins = exchanged.ends
        ends.append(max(exchanged.ends))
    one = {name: seconds / STEPS for name, seconds in exchanged.busy.items()}
    done = dataclasses.replace(
        exchanged, busy=one, update_s=exchanged.update_s / STEPS, handling_s=exchanged.handling_s / STEPS
    )
    ahead = (ends[-1] - ends[0]) / (STEPS - 1)
    return ahead + (max(ends[0], ahead) - ahead) / copied_every(ahead), done


def source(senders: Sequence[Sender]) -> str:
    """Where the time of their exchange comes from."""
    return SIMULATED if len(senders) <= MAX_SIMULATED else "the busiest link"


def copied_every(step_s: float) -> int:
    """Steps from one copy of the shards' state to the next, where copies take little; at least 1."""
    return max(1, math.floor(REPLAY_S / max(step_s, 1e-6)))


def _busiest(
    survey: Survey, way: Way, parts: Mapping[str, float], senders: Sequence[Sender], *, after: bool
) -> tuple[float, Exchanged]:
    """A lower bound of a step: the work of each channel and shard, ``after`` the first gradient or not."""
    network, work = Network(survey.hosts, survey.media), survey.work
    gradient = wire_bytes(_codec(survey, way), work.parameters)
    pushing, pulling = _by_host(senders, taking=True), _by_host(senders, taking=False)
    everyone = (sum(pushing.values()), sum(pulling.values()))
    held = {name: parts.get(name, 0.0) for name in survey.names}
    for host in survey.hosts:
        own = (pushing.get(host.name, 0), pulling.get(host.name, 0))
        out = own[0] * (1 - held[host.name]) + (everyone[1] - own[1]) * held[host.name]
        into = (everyone[0] - own[0]) * held[host.name] + own[1] * (1 - held[host.name])
        if len(network.computers) > 1:
            for channel in network.out[host.name]:
                channel.carry(gradient * out, 0.0)
            for channel in network.into[host.name]:
                channel.carry(gradient * into, 0.0)
    update = {host.name: host.update_s for host in survey.hosts}
    update_s = max(part * work.parameters * update[name] for name, part in parts.items())
    busy = {channel.name: channel.busy for channel in network.all}
    compute = max(sender.done for sender in senders)
    first = min((sender.done * _first(survey, sender) for sender in senders if sender.has_slice), default=0.0)
    first = first if after else 0.0
    touch = {host.name: host.touch_s for host in survey.hosts}
    handling_s = everyone[0] * max(part * work.parameters * touch[name] for name, part in parts.items())
    seconds = max(compute, first + max(busy.values()), first + update_s, first + handling_s)
    seconds += turn(survey) if after else 0.0
    return seconds, Exchanged(ends=(seconds,) * len(senders), busy=busy, update_s=update_s, handling_s=handling_s)


def turn(survey: Survey) -> float:
    """Seconds of a small chunk there and back between threads of a host, at most."""
    return max(host.turn_s for host in survey.hosts)


def _first(survey: Survey, sender: Sender) -> float:
    return min(survey.work.ready, default=1.0) if sender.streams else 1.0


def _by_host(senders: Sequence[Sender], *, taking: bool) -> dict[str, int]:
    counts: dict[str, int] = {}
    for sender in senders:
        counts[sender.host] = counts.get(sender.host, 0) + (sender.has_slice or not taking)
    return counts


def grouped(survey: Survey, senders: Sequence[Sender], parts: Mapping[str, float]) -> Sequence[Sender]:
    """The senders; with several shards on a network, the workers of a host that has one count as one sender."""
    several = sum(part > 0 for part in parts.values()) > 1
    return peers(senders, parts) if several and _has_network(survey) else senders


def _codec(survey: Survey, way: Way) -> str:
    """Through memory numbers go as they are."""
    return way.codec if _has_network(survey) else "fp32"


def _has_network(survey: Survey) -> bool:
    return len({host.computer or host.name for host in survey.hosts}) > 1
