"""A step's exchange as the product makes it: chunks of gradients to the shards, new weights back, on busy links.

A worker's gradient of a chunk leaves as soon as backward has it (``Work.ready``), in the order in which they come. A
shard that has a chunk of all slices makes the optimizer's step for it and sends the new weights to all workers; with
clipping, once it has all chunks. A worker begins the next step when it has all new weights. See FIFO channels in
:mod:`~remote_agent.planning.channels`. The shard's processor handles chunks that come, one after the other, and their
way there and back takes the threads' and the link's latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from remote_agent.planning import sharding
from remote_agent.planning.channels import Agenda, Channel, Network
from remote_agent.planning.survey import Survey, wire_bytes

MAX_CHUNKS = 96
"""Most chunks that are looked at one by one; more are taken together."""

MAX_TRANSFERS = 40_000
"""Most transfers of chunks in one direction, for large fleets."""


@dataclass(frozen=True, kw_only=True)
class Sender:
    """A worker in a step: its host, when its slice is computed, and whether its gradients leave one by one before."""

    host: str
    done: float
    streams: bool = True
    has_slice: bool = True


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """When each worker has all new weights, and how long each channel was at work.

    ``update_s`` and ``handling_s`` are of the shard that is at work for longest with the optimizer, and with chunks.
    """

    ends: tuple[float, ...]
    busy: Mapping[str, float]
    update_s: float
    handling_s: float = 0.0


def peers(senders: Sequence[Sender], parts: Mapping[str, float]) -> list[Sender]:
    """The same, those of a host that holds a part of the buffer as one: a relay there adds their gradients up."""
    together: dict[str | int, list[Sender]] = {}
    for number, sender in enumerate(senders):
        together.setdefault(sender.host if parts.get(sender.host) else number, []).append(sender)
    return [
        Sender(
            host=own[0].host,
            done=max(sender.done for sender in own),
            streams=all(sender.streams for sender in own),
            has_slice=any(sender.has_slice for sender in own),
        )
        for own in together.values()
    ]


class Exchange:
    """One step after the other over the same channels.

    Args:
        survey: the hosts that take part.
        parts: of the buffer, by host.
    """

    def __init__(self, survey: Survey, parts: Mapping[str, float], codec: str) -> None:
        self._survey, self._codec = survey, codec
        self._network = Network(survey.hosts, survey.media)
        self._holders = [(host, part) for host, part in parts.items() if part > 0]
        update = {host.name: host.update_s for host in survey.hosts}
        self._cores = {host: Channel(f"the update on {host}", 1.0) for host, _ in self._holders}
        self._hands = {host: Channel(f"handling on {host}", 1.0) for host, _ in self._holders}
        self._hosts = {host.name: host for host in survey.hosts}
        self._update_s = update
        workers = sum(len(host.devices) for host in survey.hosts)
        numel = survey.work.parameters
        size = sharding.chunk_numbers(numel, max(1, len(self._holders)))
        most = max(4 * len(self._holders), min(MAX_CHUNKS, MAX_TRANSFERS // max(1, workers)))
        count = max(len(self._holders), min(most, math.ceil(numel / size))) if numel else 0
        self._together = numel / size / count if count else 0.0
        self._owners, self._sizes = _dealt(count, numel, self._holders)

    def step(self, senders: Sequence[Sender], begins: Sequence[float]) -> Exchanged:
        """A step whose workers begin at these times."""
        agenda, slices = Agenda(), sum(sender.has_slice for sender in senders)
        chunks = len(self._owners)
        waiting, handled = [slices] * chunks, [0.0] * chunks
        summed = [0]
        whole: list[tuple[int, float]] = []
        ends = [max(begin + sender.done, begin) for sender, begin in zip(senders, begins, strict=True)]
        rate = self._survey.codec_s.get(self._codec, 0.0)

        def come(chunk: int, sender: str, at: float) -> None:
            owner = self._hosts[self._owners[chunk]]
            takes = max(1.0, self._together) * owner.turn_s / 2 + self._sizes[chunk] * owner.touch_s
            _, done = self._hands[owner.name].carry(takes, at + self._lag(sender, owner.name) / 2)
            handled[chunk] = at = max(handled[chunk], done)
            waiting[chunk] -= 1
            if waiting[chunk]:
                return
            summed[0] += 1
            if not self._survey.work.clipped:
                agenda.add(at, partial(update, chunk))
                return
            whole.append((chunk, at))
            if summed[0] == chunks:
                for each, _ in whole:
                    agenda.add(max(handled), partial(update, each))

        def push(sender: Sender, chunk: int, at: float) -> None:
            owner = self._owners[chunk]
            amount = wire_bytes(self._codec, self._sizes[chunk])
            self._network.send(agenda, sender.host, owner, amount, at, partial(come, chunk, sender.host))

        def update(chunk: int, at: float) -> None:
            owner = self._owners[chunk]
            _, done = self._cores[owner].carry(self._sizes[chunk] * (self._update_s[owner] + rate), at)
            agenda.add(done, partial(pull, chunk))

        def pull(chunk: int, at: float) -> None:
            owner = self._owners[chunk]
            amount = wire_bytes(self._codec, self._sizes[chunk])
            for number in range(len(senders)):  # each shard begins with another worker
                to = (number + chunk) % len(senders)
                self._network.send(agenda, owner, senders[to].host, amount, at, partial(has, to, owner))

        def has(number: int, owner: str, at: float) -> None:
            ends[number] = max(ends[number], at + self._lag(senders[number].host, owner) / 2)

        for sender, begin in zip(senders, begins, strict=True):
            if sender.has_slice:
                for chunk in range(chunks):
                    agenda.add(begin + sender.done * self._ready(sender, chunk), partial(push, sender, chunk))
        agenda.run()
        busy = {channel.name: channel.busy for channel in self._network.all}
        return Exchanged(
            ends=tuple(ends),
            busy=busy,
            update_s=max((core.busy for core in self._cores.values()), default=0.0),
            handling_s=max((hand.busy for hand in self._hands.values()), default=0.0),
        )

    def _lag(self, worker: str, owner: str) -> float:
        """Seconds of a small chunk from a worker to a shard and back."""
        both = (self._hosts[worker], self._hosts[owner])
        link_s = max(host.latency_s for host in both) if self._network.are_apart(worker, owner) else 0.0
        return link_s + max(host.turn_s for host in both)

    def _ready(self, sender: Sender, chunk: int) -> float:
        curve = self._survey.work.ready
        if not sender.streams or not curve:
            return 1.0
        begin, end = chunk * len(curve) // len(self._owners), -(-(chunk + 1) * len(curve) // len(self._owners))
        return max(curve[begin:end])  # it leaves when all of it is there


def _dealt(count: int, numel: int, holders: Sequence[tuple[str, float]]) -> tuple[list[str], list[int]]:
    """The owner and the numbers of each chunk: neighbours on different shards, each shard with its part of all."""
    owners: list[str] = []
    given = dict.fromkeys((host for host, _ in holders), 0)
    shares = dict(holders)
    for number in range(count):
        owner = max(shares, key=lambda host: shares[host] * (number + 1) - given[host])
        given[owner] += 1
        owners.append(owner)
    for host in [host for host in shares if count and not given[host]]:  # a part smaller than a chunk
        owners[owners.index(max(given, key=lambda each: given[each]))] = host
        given = {each: owners.count(each) for each in shares}
    return owners, [math.ceil(numel * shares[owner] / given[owner]) for owner in owners]
