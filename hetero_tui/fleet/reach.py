"""Measures what hosts reach of each other: every TCP port of a sample, in both directions, before Ray is started there.

On each host a process (``remote_agent.host.reach``) listens where Ray and training would and tries the others' ports.
A firewall that leaves SSH and Ray's first port open would let a cluster come up, and then lose its hosts one by one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TypeVar

from hetero_tui import answers, deadlines
from hetero_tui.errors import HostError
from hetero_tui.fleet import agent
from hetero_tui.inventory import Inventory
from hetero_tui.planning.reach import Door, Measured
from hetero_tui.transport import Conversation, Transport
from remote_agent import protocol

STEP = "reach"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Host:
    name: str
    talk: Conversation
    listening: protocol.Listening


async def measure(
    inventory: Inventory, transports: Mapping[str, Transport], addresses: Mapping[str, Sequence[str]]
) -> Measured:
    """Have the hosts of ``addresses`` try each other at these; one that can't be asked is left out."""
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
        return Measured(outcomes, {host.name: host.listening.firewall for host in hosts})


async def _listen(stack: AsyncExitStack, inventory: Inventory, transport: Transport) -> _Host | None:
    host = inventory.host(transport.host)
    if host is None:
        return None
    arguments = agent.inline("host/reach.py", f"{deadlines.REACH_ATTEMPT:g}")
    command = agent.with_python(arguments, agent.python_candidates(inventory.cluster, host))
    with suppress(TimeoutError, HostError):
        async with asyncio.timeout(deadlines.REACH):
            talk = await stack.enter_async_context(transport.converse(command, step=STEP, silence=deadlines.REACH))
            listening = await _answer(protocol.Listening, talk)
            if listening is not None:
                return _Host(host.name, talk, listening)
    return None


async def _try(host: _Host, doors: Sequence[Door], words: Mapping[str, str]) -> dict[tuple[str, Door], str]:
    """What became of the others' doors that ``host`` tried; nothing, where it did not say so."""
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
        if line.raw.startswith('{"reach"'):  # else a login shell's own words
            with suppress(protocol.ProtocolError):
                return answers.value(cls, line)
    return None
