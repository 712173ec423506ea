"""Tests a sample of TCP ports between hosts, in both directions, before Ray is started.

On each host a process (``remote_agent.host.reach``) listens on ports like those of Ray and training, and tries the
others' ports. Behind a firewall with only SSH and Ray's first port open, a cluster would start and then lose its hosts
one by one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from hetero_tui import answers, deadlines
from hetero_tui.errors import HostError
from hetero_tui.fleet import agent
from hetero_tui.inventory import Inventory
from hetero_tui.planning.reach import Door, Measured, best_addresses
from hetero_tui.transport import Conversation, Transport
from remote_agent import protocol

STEP = "reach"
_ROUNDS = 2  # of the measurement of rates
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Host:
    name: str
    talk: Conversation
    listening: protocol.Listening


async def measure(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    addresses: Mapping[str, Sequence[str]],
    *,
    with_rates: bool = False,
) -> Measured:
    """Let the hosts of ``addresses`` try each other at these; a host that can't be asked is left out.

    ``with_rates``: also measure the speed of their links, which uses them fully for a second or two.
    """
    async with AsyncExitStack() as stack:
        ready = await asyncio.gather(*(_listen(stack, inventory, transports[name]) for name in addresses))
        hosts = [host for host in ready if host is not None]
        words = {host.name: host.listening.word for host in hosts}
        doors = [
            Door(host.name, address, port)
            for host in hosts
            for address in addresses[host.name]
            for port in host.listening.ports
        ]
        outcomes: dict[tuple[str, Door], str] = {}
        for found in await asyncio.gather(*(_try(host, doors, words) for host in hosts)):
            outcomes |= found
        measured = Measured(outcomes, {host.name: host.listening.firewall for host in hosts})
        if not with_rates:
            return measured
        best = best_addresses(measured, addresses)
        return replace(measured, rates=await _rates([host for host in hosts if host.name in best], best, outcomes))


async def _rates(
    hosts: Sequence[_Host], addresses: Mapping[str, str], outcomes: Mapping[tuple[str, Door], str]
) -> dict[str, tuple[float, float]]:
    """Bytes/s that each host sent and received. In each round all send and receive at once, as in a step of training.

    Round ``r`` pairs each host with the one ``r`` places on, so a slow partner hides a fast link at most once.
    """
    rates = {host.name: (0.0, 0.0) for host in hosts}
    for ahead in range(1, min(_ROUNDS, len(hosts) - 1) + 1):
        pairs = [(host, hosts[(place + ahead) % len(hosts)]) for place, host in enumerate(hosts)]
        doors = [_open(source, target, addresses[target.name], outcomes) for source, target in pairs]
        received = await asyncio.gather(
            *(_transfer(source, target, door) for (source, target), door in zip(pairs, doors, strict=True))
        )
        came = {source.name: rate for (source, _), rate in zip(pairs, received, strict=True)}
        for source, target in pairs:
            up, down = rates[source.name]
            rates[source.name] = (max(up, came[target.name]), max(down, came[source.name]))
    return {name: both for name, both in rates.items() if all(both)}


def _open(source: _Host, target: _Host, address: str, outcomes: Mapping[tuple[str, Door], str]) -> Door | None:
    doors = (Door(target.name, address, port) for port in target.listening.ports)
    return next((door for door in doors if outcomes.get((source.name, door)) == ""), None)


async def _transfer(source: _Host, target: _Host, door: Door | None) -> float:
    """Let ``source`` send to ``target``; returns what ``source`` received meanwhile from another host."""
    if door is None:
        return 0.0
    asked = {"send": [door.address, door.port, target.listening.word], "seconds": deadlines.REACH_TRANSFER}
    with suppress(TimeoutError, HostError):
        async with asyncio.timeout(deadlines.REACH):
            await source.talk.say(json.dumps(asked).encode() + b"\n")
            got = await _answer(protocol.Received, source.talk)
            return got.rate if got is not None and got.rate >= 0 else 0.0
    return 0.0


async def _listen(stack: AsyncExitStack, inventory: Inventory, transport: Transport) -> _Host | None:
    host = inventory.host(transport.host)
    if host is None:
        return None
    attempt_s = deadlines.MESH_REACH_ATTEMPT if inventory.meshed else deadlines.REACH_ATTEMPT
    arguments = agent.inline("host/reach.py", f"{attempt_s:g}")
    command = agent.with_python(arguments, agent.python_candidates(inventory.cluster, host))
    with suppress(TimeoutError, HostError):
        async with asyncio.timeout(deadlines.REACH):
            talk = await stack.enter_async_context(transport.converse(command, step=STEP, silence=deadlines.REACH))
            listening = await _answer(protocol.Listening, talk)
            if listening is not None:
                return _Host(host.name, talk, listening)
    return None


async def _try(host: _Host, doors: Sequence[Door], words: Mapping[str, str]) -> dict[tuple[str, Door], str]:
    """The results of the others' ports that ``host`` tried; empty if it did not answer."""
    others = [door for door in doors if door.host != host.name]
    with suppress(TimeoutError, HostError):
        async with asyncio.timeout(deadlines.REACH):
            line = json.dumps([[door.address, door.port, words[door.host]] for door in others])
            await host.talk.say(line.encode() + b"\n")
            tried = await _answer(protocol.Tried, host.talk)
            if tried is not None and len(tried.outcomes) == len(others):
                return {(host.name, door): outcome for door, outcome in zip(others, tried.outcomes, strict=True)}
    return {}


async def _answer(cls: type[T], talk: Conversation) -> T | None:
    async for line in talk.lines:
        if line.raw.startswith('{"reach"'):  # otherwise it is output of a login shell
            with suppress(protocol.ProtocolError):
                return answers.value(cls, line)
    return None
