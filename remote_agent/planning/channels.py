"""Models the channels between hosts in a prediction: links, each direction or both together, and shared media. Pure.

A channel carries one thing after the other, in the order in which they are handed to it. A transfer occupies the
sender's and the receiver's channels; the later one begins with the first byte that the one before lets through.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from remote_agent.planning.survey import Host

UNLIMITED = 1e12
"""Bytes/s of a link that was not measured: it is taken to hold nothing up."""


@dataclass(eq=False)
class Channel:
    """One thing that carries bytes, or does work, at a rate.

    Attributes:
        rate: bytes/s.
        free: when it has done all that was handed to it, in seconds.
        busy: seconds that it was at work.
    """

    name: str
    rate: float
    free: float = 0.0
    busy: float = 0.0

    def carry(self, amount: float, at: float) -> tuple[float, float]:
        """Take ``amount`` from ``at`` on. Returns when it begins and ends."""
        begin = max(at, self.free)
        seconds = amount / self.rate
        self.free = begin + seconds
        self.busy += seconds
        return begin, self.free


@dataclass(eq=False)
class Agenda:
    """What happens, in the order of time."""

    _coming: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _number: int = 0

    def add(self, at: float, action: Callable[[float], None]) -> None:
        """Have ``action`` called with the time ``at``; of two at the same time the one added first."""
        heapq.heappush(self._coming, (at, self._number, action))
        self._number += 1

    def run(self) -> None:
        """Until nothing is left."""
        while self._coming:
            at, _, action = heapq.heappop(self._coming)
            action(at)


class Network:
    """The channels of some hosts; ``media``: what several of them share: bytes/s, by name."""

    def __init__(self, hosts: Sequence[Host], media: Mapping[str, float]) -> None:
        self._computer = {host.name: host.computer or host.name for host in hosts}
        shared_by = {name: Channel(f"the medium {name}", rate) for name, rate in media.items()}
        self.out: dict[str, tuple[Channel, ...]] = {}
        self.into: dict[str, tuple[Channel, ...]] = {}
        for host in hosts:
            up, down = _ends(host)
            shared = (shared_by[host.medium],) if host.medium in media else ()
            self.out[host.name], self.into[host.name] = (up, *shared), (*shared, down)

    @property
    def computers(self) -> frozenset[str]:
        """Those with a network between them."""
        return frozenset(self._computer.values())

    def are_apart(self, sender: str, receiver: str) -> bool:
        """Whether a network lies between two hosts."""
        return self._computer[sender] != self._computer[receiver]

    def send(
        self, agenda: Agenda, sender: str, receiver: str, amount: float, at: float, then: Callable[[float], None]
    ) -> None:
        """Send from one host to another from ``at`` on, and call ``then`` when all of it is there."""
        if self.are_apart(sender, receiver):
            self._pass((*self.out[sender], *self.into[receiver]), agenda, amount, then, at, at)
        else:
            agenda.add(at, then)

    def _pass(
        self,
        channels: tuple[Channel, ...],
        agenda: Agenda,
        amount: float,
        then: Callable[[float], None],
        end: float,
        at: float,
    ) -> None:
        """Hand it to the first of these channels now, and to the next one when that begins with it."""
        begin, done = channels[0].carry(amount, at)
        end = max(end, done)
        if len(channels) > 1:
            agenda.add(begin, partial(self._pass, channels[1:], agenda, amount, then, end))
        else:
            agenda.add(end, then)

    @property
    def all(self) -> tuple[Channel, ...]:
        """Each channel once."""
        found = [channel for ends in (*self.out.values(), *self.into.values()) for channel in ends]
        return tuple(dict.fromkeys(found))


def _ends(host: Host) -> tuple[Channel, Channel]:
    if host.both:
        one = Channel(f"the link of {host.name}", host.both)
        return one, one
    return (
        Channel(f"the link of {host.name} (out)", host.up or UNLIMITED),
        Channel(f"the link of {host.name} (in)", host.down or UNLIMITED),
    )
