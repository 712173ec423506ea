"""Predicts the time of a step for every strategy, codec and set of hosts. Pure.

A step is a sum of terms, each with its source (:class:`Term`):

- ``compute``: the device that ends last, by the measured line ``overhead + samples / speed`` (``shares``);
- ``exchange``: what of the exchange is not hidden behind computing, from a simulation of the links (``exchange``) for
  ``sync`` and ``local_sgd``; ``2 (n - 1) / n`` of the gradient over the slowest of ``n`` hosts' links for ``allreduce``
  (Patarasuk and Yuan, 2009). The devices of one host are one peer, where it holds a part of the parameter server;
- ``handling``: what chunks take of processors and threads on their way, which a link's speed does not show: by an
  exchange of each host with itself;
- ``update``: the optimizer's step, where nothing hides it;
- ``calls``: of actors, where a step waits for them.

Where no worker waits for the others (``ssp``, ``async``) each channel is shared fairly (max-min) among the workers that
use it, and a worker is no faster than it computes; with ``ssp`` none is faster than the slowest.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from remote_agent.planning.channels import Network
from remote_agent.planning.exchange import Exchange, Exchanged, Sender, peers
from remote_agent.planning.fairness import fair_rates
from remote_agent.planning.shares import split
from remote_agent.planning.sites import DoesNotFit, check_memory, sited
from remote_agent.planning.survey import Device, Host, Survey, wire_bytes
from remote_agent.planning.units import aligned
from remote_agent.planning.ways import (
    ALLREDUCE,
    ASYNC,
    CALLS,
    COMPUTE,
    EXCHANGE,
    HANDLING,
    LOCAL,
    OTHER,
    SSP,
    UPDATE,
    Prediction,
    Term,
    Way,
    ratio_name,
)

SLOWEST = "the slowest device's slice"
SIMULATED = "links, simulated chunk by chunk"
HANDLED = "chunks through threads and processors, by an exchange of a host with itself"
CALL = "one call of an actor"
"""Sources of terms."""

STEPS = 3
"""Steps that are simulated one after the other: the first is longer, as all workers begin it at once."""

REPLAY_S = 1.0
"""What a lost shard should cost at most beside its new start: the steps since the copy, in seconds of training. After a
step that is copied all workers begin the next one at the same time; else each begins once it has the weights."""

MAX_SIMULATED = 24
"""Up to so many workers the exchange is simulated chunk by chunk; of more, its bound is taken."""

RING_OPERATIONS = 2
"""Reductions of a step with ``allreduce`` that nothing hides: of the gradient, and of what its samples weigh."""

RING_TOUCHES = 2
"""Times that a number is handled in a ring, beside being sent: packed and unpacked, and summed."""


def predict(survey: Survey, way: Way, *, bound: bool = False) -> Prediction:
    """A step of a way.

    Args:
        survey: fleet and job.
        way: how.
        bound: the exchange takes no longer than its busiest link, whatever the order of its parts: a lower bound of the
            step, in a hundredth of the time.

    Raises:
        DoesNotFit: into the hosts' memory, or no device is there to compute.
    """
    survey = survey.of(way.hosts)
    devices = [(host, device) for host in survey.hosts for device in host.devices]
    if not devices:
        raise DoesNotFit("no device computes there")
    check_memory(survey, [device for _, device in devices])
    make = {ALLREDUCE: _allreduce, LOCAL: _local, SSP: _stale, ASYNC: _stale}
    simple = make.get(way.strategy)
    found = simple(survey, way, devices) if simple is not None else _sync(survey, way, devices, bound=bound)
    terms = tuple(term.times(survey.ratios.get(ratio_name(way.strategy, term.name), 1.0)) for term in found.terms)
    if survey.other_s:
        terms += (Term(name=OTHER, seconds=survey.other_s, source="what is left of this job's steps"),)
    seconds, slower = sum(term.seconds for term in terms), survey.ratios.get(COMPUTE, 1.0)
    found = dataclasses.replace(
        found,
        terms=terms,
        busy_s={name: slower * each for name, each in found.busy_s.items()},
        link_s=min(found.link_s, seconds),
        joules=_of_all([host.watts for host in survey.hosts]) * seconds,
        price=_of_all([host.price for host in survey.hosts]) * seconds / 3600,
    )
    return dataclasses.replace(found, bound=found.limit)


def _of_all(values: Sequence[float]) -> float:
    """Their sum; 0 if one of them is not known."""
    return sum(values) if all(values) else 0.0


# --- Where a step is one batch ---------------------------------------------------------------------------------------


_Devices = Sequence[tuple[Host, Device]]


def cut(survey: Survey, devices: _Devices) -> tuple[int, ...]:
    """Samples of each device in a step.

    Raises:
        DoesNotFit: the batch does not, into the devices' memory.
    """
    work = survey.work
    try:
        shares = split(work.batch, [device.profile for _, device in devices], work.least)
    except ValueError as error:
        raise DoesNotFit(str(error)) from None
    return aligned(shares, work.unit) if work.unit else shares


def _sync(survey: Survey, way: Way, devices: _Devices, *, bound: bool) -> Prediction:
    shares = cut(survey, devices)
    times = [device.profile.seconds(samples) for (_, device), samples in zip(devices, shares, strict=True)]
    parts = _parts(survey, way)
    senders = [
        Sender(host=host.name, done=time, has_slice=samples > 0)
        for (host, _), time, samples in zip(devices, times, shares, strict=True)
    ]
    compute = max(times)
    sending = _peers(survey, senders, parts)
    seconds, exchanged = _exchanged(survey, way, parts, sending, bound=bound)
    rest = max(0.0, seconds - compute)
    update = min(rest, exchanged.update_s)
    handling = min(rest - update, exchanged.handling_s + _turn(survey))
    terms = (
        Term(name=COMPUTE, seconds=compute, source=SLOWEST),
        Term(name=EXCHANGE, seconds=rest - update - handling, source=_source(sending)),
        Term(name=HANDLING, seconds=handling, source=HANDLED),
        Term(name=UPDATE, seconds=update, source="the optimizer's step on the shards"),
        Term(name=CALLS, seconds=survey.call_s, source=CALL),
    )
    return _prediction(way, terms, devices, shares, times, parts, exchanged.busy, survey.work.batch)


def _exchanged(
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


def _source(senders: Sequence[Sender]) -> str:
    return SIMULATED if len(senders) <= MAX_SIMULATED else "the busiest link"


def copied_every(step_s: float) -> int:
    """Steps from one copy of the shards' state to the next, where copies take little; at least 1."""
    return max(1, math.floor(REPLAY_S / max(step_s, 1e-6)))


def _busiest(
    survey: Survey, way: Way, parts: Mapping[str, float], senders: Sequence[Sender], *, after: bool
) -> tuple[float, Exchanged]:
    """A lower bound of a step: the work of each channel and shard, ``after`` the first gradient or not."""
    network, work = Network(survey.hosts, survey.media), survey.work
    gradient = wire_bytes(_codec(survey, way), work.parameters, work.topk_fraction)
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
    seconds = max(compute, first + max(busy.values(), default=0.0), first + update_s, first + handling_s)
    seconds += _turn(survey) if after else 0.0
    return seconds, Exchanged(ends=(seconds,) * len(senders), busy=busy, update_s=update_s, handling_s=handling_s)


def _turn(survey: Survey) -> float:
    """Seconds of a small chunk there and back between threads of a host, at most."""
    return max((host.turn_s for host in survey.hosts), default=0.0)


def _first(survey: Survey, sender: Sender) -> float:
    return min(survey.work.ready, default=1.0) if sender.streams else 1.0


def _by_host(senders: Sequence[Sender], *, taking: bool) -> dict[str, int]:
    counts: dict[str, int] = {}
    for sender in senders:
        counts[sender.host] = counts.get(sender.host, 0) + (sender.has_slice or not taking)
    return counts


def _allreduce(survey: Survey, way: Way, devices: _Devices) -> Prediction:
    if survey.work.encrypted and len({host.name for host, _ in devices}) > 1:
        raise DoesNotFit("allreduce can't encrypt what goes between hosts, as `security: tls` wants it")
    shares = cut(survey, devices)
    times = [device.profile.seconds(samples) for (_, device), samples in zip(devices, shares, strict=True)]
    here = Counter(host.name for host, _ in devices)
    hosts, most = len(here), max(here.values())
    each = 2 * (hosts - 1) / hosts * 4 * survey.work.parameters
    network = Network(survey.hosts, survey.media)
    apart = {host.computer or host.name for host, _ in devices}
    busy: dict[str, float] = {}
    if len(apart) > 1:
        for name in here:
            for channel in (*network.out[name], *network.into[name]):
                channel.carry(each, 0.0)
        busy = {channel.name: channel.busy for channel in network.all}
    latency = max(host.latency_s for host, _ in devices) if len(apart) > 1 else 0.0
    half_turns = RING_OPERATIONS * 2 * (hosts - 1)
    ring = max(busy.values(), default=0.0) + half_turns * latency / 2
    touch = max(host.touch_s for host, _ in devices) * survey.work.parameters
    on_host = RING_OPERATIONS * (3 if hosts > 1 else 2) * (most - 1)  # summed there, and the others' sums handed on
    handling = (half_turns + on_host) * _turn(survey) / 2 + RING_TOUCHES * ((hosts > 1) + (most > 1)) * touch
    step = max(device.step_s for _, device in devices)
    terms = (
        Term(name=COMPUTE, seconds=max(times), source=SLOWEST),
        Term(name=EXCHANGE, seconds=ring, source="2 (n - 1) / n of the gradient over the slowest link"),
        Term(name=HANDLING, seconds=handling, source=HANDLED),
        Term(name=UPDATE, seconds=step, source="the job's optimizer on the slowest device"),
        Term(name=CALLS, seconds=2 * survey.call_s, source="two calls of an actor"),
    )
    return _prediction(way, terms, devices, shares, times, {}, busy, survey.work.batch)


# --- Rounds ----------------------------------------------------------------------------------------------------------


def local_counts(most: int, seconds: Sequence[float]) -> tuple[int, ...]:
    """Local steps of each device in a round, of which the fastest makes ``most``; all end at about the same time."""
    return tuple(max(1, math.floor(most * min(seconds) / each + 0.5)) for each in seconds)


def _local(survey: Survey, way: Way, devices: _Devices) -> Prediction:
    batch = way.local_batch or max(1, survey.work.batch // len(devices))
    slices = [device.profile.seconds(batch) for _, device in devices]
    counts = local_counts(way.local_steps, slices)
    times = [count * (each + device.step_s) for count, each, (_, device) in zip(counts, slices, devices, strict=True)]
    parts = _parts(survey, way)
    each = [Sender(host=host.name, done=time, streams=False) for (host, _), time in zip(devices, times, strict=True)]
    senders = _peers(survey, each, parts)
    compute = max(times)
    if way.overlap:
        idle = [dataclasses.replace(sender, done=0.0) for sender in senders]
        alone, exchanged = _exchanged(survey, way, parts, idle)
        seconds = max(compute, alone)
    else:
        seconds, exchanged = _exchanged(survey, way, parts, senders)
    rest = max(0.0, seconds - compute)
    handling = min(rest, exchanged.handling_s + _turn(survey))
    terms = (
        Term(name=COMPUTE, seconds=compute, source="local steps of the device that ends last"),
        Term(name=EXCHANGE, seconds=rest - handling, source=_source(senders)),
        Term(name=HANDLING, seconds=handling, source=HANDLED),
        Term(name=CALLS, seconds=survey.call_s, source=CALL),
    )
    shares = [count * batch for count in counts]
    return _prediction(way, terms, devices, shares, times, parts, exchanged.busy, sum(shares))


# --- Where no worker waits for the others ----------------------------------------------------------------------------


def _stale(survey: Survey, way: Way, devices: _Devices) -> Prediction:
    shares = cut(survey, devices)
    times = [device.profile.seconds(samples) for (_, device), samples in zip(devices, shares, strict=True)]
    parts = _parts(survey, way)
    taking = [number for number, samples in enumerate(shares) if samples]
    loads, rates = _loads(survey, way, devices, parts, taking)
    caps = [1 / (times[number] + survey.call_s + _turn(survey)) for number in taking]
    pace = fair_rates(caps, loads, rates)
    if way.strategy == SSP:
        pace = [min(pace)] * len(pace)
    speed = sum(shares[number] * rate for number, rate in zip(taking, pace, strict=True))
    seconds = survey.work.batch / speed
    busy = {
        name: seconds * sum(load * rate for load, rate in zip(loads[name], pace, strict=True)) / rates[name]
        for name in loads
    }
    compute = survey.work.batch / sum(shares[number] / times[number] for number in taking)
    terms = (
        Term(name=COMPUTE, seconds=compute, source="all devices at their own pace"),
        Term(name=EXCHANGE, seconds=max(0.0, seconds - compute), source="links shared fairly; what they don't hide"),
    )
    links = {name: value for name, value in busy.items() if name.startswith(("the link", "the medium"))}
    return _prediction(way, terms, devices, shares, times, parts, links, survey.work.batch)


def _loads(
    survey: Survey, way: Way, devices: _Devices, parts: Mapping[str, float], taking: Sequence[int]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """What one slice of each worker asks of each channel, and the channels' rates."""
    network, work = Network(survey.hosts, survey.media), survey.work
    update = {host.name: host.update_s for host in survey.hosts}
    touch = {host.name: host.touch_s for host in survey.hosts}
    out = wire_bytes(way.codec, work.parameters, work.topk_fraction)
    back = wire_bytes("bf16" if way.codec != "fp32" else "fp32", work.parameters)
    loads: dict[str, list[float]] = {}
    rates: dict[str, float] = {}
    for position, number in enumerate(taking):
        host = devices[number][0].name
        asked: list[tuple[str, float, float]] = []
        for owner, part in parts.items():
            asked.append((f"the update on {owner}", 1.0, part * work.parameters * (update[owner] + touch[owner])))
            if network.are_apart(host, owner):
                asked += [(each.name, each.rate, out * part) for each in (*network.out[host], *network.into[owner])]
                asked += [(each.name, each.rate, back * part) for each in (*network.out[owner], *network.into[host])]
        for name, rate, amount in asked:
            rates[name] = rate
            loads.setdefault(name, [0.0] * len(taking))[position] += amount
    return loads, rates


# --- What they have in common ----------------------------------------------------------------------------------------


def _parts(survey: Survey, way: Way) -> dict[str, float]:
    """The parts of the parameter server: those that the way gives, if its hosts are there."""
    given = dict(way.parts)
    if given and set(given) <= set(survey.names):
        return given
    return sited(survey, way.codec, way.shards, relays=way.strategy not in (SSP, ASYNC))


def _peers(survey: Survey, senders: Sequence[Sender], parts: Mapping[str, float]) -> Sequence[Sender]:
    several = sum(part > 0 for part in parts.values()) > 1
    return peers(senders, parts) if several and _has_network(survey) else senders


def _codec(survey: Survey, way: Way) -> str:
    """Through memory numbers go as they are."""
    return way.codec if _has_network(survey) else "fp32"


def _has_network(survey: Survey) -> bool:
    return len({host.computer or host.name for host in survey.hosts}) > 1


def _prediction(
    way: Way,
    terms: tuple[Term, ...],
    devices: _Devices,
    shares: Sequence[int],
    times: Sequence[float],
    parts: Mapping[str, float],
    busy: Mapping[str, float],
    samples: int,
) -> Prediction:
    names = [device.name for _, device in devices]
    link_s, link = max(((seconds, name) for name, seconds in busy.items() if seconds > 0), default=(0.0, ""))
    return Prediction(
        way=way,
        terms=terms,
        samples=samples,
        shares=dict(zip(names, shares, strict=True)),
        busy_s=dict(zip(names, times, strict=True)),
        parts=dict(parts),
        link_s=link_s,
        link=link,
    )
