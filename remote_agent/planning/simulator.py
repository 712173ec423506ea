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
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from remote_agent.planning.channels import Network
from remote_agent.planning.exchange import Sender
from remote_agent.planning.served_step import grouped, served_step, source, turn
from remote_agent.planning.shares import split
from remote_agent.planning.sites import DoesNotFit, check_memory, sited
from remote_agent.planning.survey import Device, Host, Survey
from remote_agent.planning.units import aligned
from remote_agent.planning.ways import (
    ALLREDUCE,
    CALLS,
    COMPUTE,
    EXCHANGE,
    HANDLING,
    LOCAL,
    OTHER,
    UPDATE,
    Prediction,
    Term,
    Way,
    ratio_name,
)

SLOWEST = "the slowest device's slice"
HANDLED = "chunks through threads and processors, by an exchange of a host with itself"
CALL = "one call of an actor"
"""Sources of terms."""

LEAST_PART = 0.05
"""Terms of a smaller part of the step have no ratio: what is left of the step has another cause."""

LEAST_RATIO = 0.2
"""No term is corrected to less: that would be the noise of computing, and what is 0 once stays 0."""

RING_TOUCHES = 2
"""Times that a number is handled in a ring, beside being sent: packed and unpacked, and summed."""


def predict(survey: Survey, way: Way, *, bound: bool = False) -> Prediction:
    """A step of a way.

    Args:
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
    make = {ALLREDUCE: _allreduce, LOCAL: _local}
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
    )
    return dataclasses.replace(found, bound=found.limit)


def tried(survey: Survey, way: Way) -> Prediction | None:
    """As :func:`predict`; None: it does not fit."""
    try:
        return predict(survey, way)
    except DoesNotFit:
        return None


# --- Where a step is one batch ---------------------------------------------------------------------------------------


_Devices = Sequence[tuple[Host, Device]]


def cut(survey: Survey, devices: _Devices) -> tuple[int, ...]:
    """Samples of each device in a step; raises DoesNotFit if the batch does not fit into their memory."""
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
    sending = grouped(survey, senders, parts)
    seconds, exchanged = served_step(survey, way, parts, sending, bound=bound)
    rest = max(0.0, seconds - compute)
    update = min(rest, exchanged.update_s)
    handling = min(rest - update, exchanged.handling_s + turn(survey))
    terms = (
        Term(name=COMPUTE, seconds=compute, source=SLOWEST),
        Term(name=EXCHANGE, seconds=rest - update - handling, source=source(sending)),
        Term(name=HANDLING, seconds=handling, source=HANDLED),
        Term(name=UPDATE, seconds=update, source="the optimizer's step on the shards"),
        Term(name=CALLS, seconds=survey.call_s, source=CALL),
    )
    return _prediction(way, terms, devices, shares, times, parts, exchanged.busy, survey.work.batch)


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
    half_turns = 2 * (hosts - 1)
    ring = max(busy.values(), default=0.0) + half_turns * latency / 2
    touch = max(host.touch_s for host, _ in devices) * survey.work.parameters
    on_host = (3 if hosts > 1 else 2) * (most - 1)  # summed there, and the others' sums handed on
    handling = (half_turns + on_host) * turn(survey) / 2 + RING_TOUCHES * ((hosts > 1) + (most > 1)) * touch
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
    senders = grouped(survey, each, parts)
    compute = max(times)
    if way.overlap:
        idle = [dataclasses.replace(sender, done=0.0) for sender in senders]
        alone, exchanged = served_step(survey, way, parts, idle)
        seconds = max(compute, alone)
    else:
        seconds, exchanged = served_step(survey, way, parts, senders)
    rest = max(0.0, seconds - compute)
    handling = min(rest, exchanged.handling_s + turn(survey))
    terms = (
        Term(name=COMPUTE, seconds=compute, source="local steps of the device that ends last"),
        Term(name=EXCHANGE, seconds=rest - handling, source=source(senders)),
        Term(name=HANDLING, seconds=handling, source=HANDLED),
        Term(name=CALLS, seconds=survey.call_s, source=CALL),
    )
    shares = [count * batch for count in counts]
    return _prediction(way, terms, devices, shares, times, parts, exchanged.busy, sum(shares))


# --- Corrected by steps that were made -------------------------------------------------------------------------------


def corrected(survey: Survey, way: Way, step_s: float, compute_s: float) -> Survey:
    """Return the survey with which a step of ``way`` takes as long as it was measured to take.

    A step shows two times, its own and that of the device that computed longest. So computing has a ratio of its own,
    measured over predicted, and the other terms share one. Where next to nothing was predicted of these, what is left
    of the step becomes a term by itself.

    Raises:
        DoesNotFit: the job, into the hosts' memory.
    """
    predicted, ratios = predict(survey, way), dict(survey.ratios)

    def multiply(ratio: float, *terms: str) -> None:
        for name in (ratio_name(way.strategy, term) for term in terms):
            ratios[name] = ratios.get(name, 1.0) * ratio

    planned_s = predicted.term(COMPUTE)
    rest_s = predicted.seconds - planned_s
    if planned_s > 0:
        multiply(compute_s / planned_s, COMPUTE)
    if rest_s > LEAST_PART * predicted.seconds:
        ratio = max(LEAST_RATIO, (step_s - compute_s) / rest_s)
        multiply(ratio, EXCHANGE, HANDLING, UPDATE, CALLS)
        return dataclasses.replace(survey, ratios=ratios, other_s=ratio * survey.other_s)
    without = dataclasses.replace(survey, ratios=ratios, other_s=0.0)
    return dataclasses.replace(without, other_s=max(0.0, step_s - predict(without, way).seconds))


# --- What they have in common ----------------------------------------------------------------------------------------


def _parts(survey: Survey, way: Way) -> dict[str, float]:
    """The parts of the parameter server: those that the way gives, if its hosts are there."""
    given = dict(way.parts)
    if given and set(given) <= set(survey.names):
        return given
    return sited(survey, way.codec, way.shards)


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
