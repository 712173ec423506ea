"""Locks all hosts that answer, so that only one command at a time, from any laptop, changes a cluster.

Two commands that start or stop a cluster at once would undo each other's work. The second one waits, and then works
with the result of the first. A process on the host (``remote_agent.host.hold``) holds the lock as long as this laptop
keeps in touch with it, so a killed command leaves no lock. A host that does not answer, or can't be locked, is left
out: one common host is enough for two commands to notice each other.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import platform
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from hetero_tui import answers, deadlines
from hetero_tui.errors import ClusterError, HostError
from hetero_tui.fleet import agent
from hetero_tui.inventory import Inventory
from hetero_tui.transport import Conversation, Transport
from remote_agent import protocol

STEP = "hold hosts"


@dataclass(frozen=True, slots=True)
class _Host:
    """A host whose process is ready to lock it; ``machine`` identifies it for every laptop."""

    machine: str
    talk: Conversation


@asynccontextmanager
async def alone(
    inventory: Inventory, transports: Mapping[str, Transport], command: str, waiting: Callable[[str], None]
) -> AsyncIterator[None]:
    """Lock the hosts for ``command``; ``waiting`` is called with a description of the command that has the lock.

    Raises:
        ClusterError: another command locked one of them for longer than :data:`~hetero_tui.deadlines.HOLD_WAIT`.
    """
    own = f"{getpass.getuser()}@{platform.node()}"
    owner = json.dumps({"id": secrets.token_hex(8), "by": own, "command": command})

    async with AsyncExitStack() as stack:
        ready = await asyncio.gather(*(_ready(stack, inventory, transport, owner) for transport in transports.values()))
        # Every laptop locks the machines in the same order, so that no two wait for each other.
        hosts = sorted((host for host in ready if host is not None), key=lambda host: host.machine)
        beating = asyncio.create_task(_beat(hosts), name="hold hosts")
        try:
            await _take_all(hosts, own, command, waiting)
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, *(_let_go(host) for host in hosts), return_exceptions=True)


async def _take_all(hosts: list[_Host], own: str, command: str, waiting: Callable[[str], None]) -> None:
    told = ""
    try:
        async with asyncio.timeout(deadlines.HOLD_WAIT):
            for host in hosts:
                async for word in _take(host):
                    other = f"`{word.command}` {'of this laptop' if word.by == own else f'by {word.by}'}"
                    if other != told:
                        told = other
                        waiting(f"{told} is changing this cluster; this command waits for it")
    except TimeoutError:
        raise ClusterError(
            f"{told} has been changing this cluster for {deadlines.HOLD_WAIT:g} s",
            step=command,
            hint="end it there, then try again",
        ) from None


async def _ready(stack: AsyncExitStack, inventory: Inventory, transport: Transport, owner: str) -> _Host | None:
    """The host once its process runs; None: none can run, and the command's own steps will say why."""
    host = inventory.host(transport.host)
    if host is None:
        return None
    path = f"{agent.home_folder(inventory.cluster)}.lock"
    arguments = agent.inline("host/hold.py", path, owner, f"{deadlines.HOLD_SILENCE:g}")
    words = agent.with_python(arguments, agent.python_candidates(inventory.cluster, host))
    try:
        async with asyncio.timeout(deadlines.HOLD_READY):
            await transport.connect()
            talk = await stack.enter_async_context(transport.converse(words, step=STEP, silence=deadlines.HOLD_WAIT))
            async for word in _words(talk):
                return _Host(word.machine, talk)
    except (TimeoutError, HostError):
        pass
    return None


async def _take(host: _Host) -> AsyncIterator[protocol.Hold]:
    """Lock one host, and yield each command that has its lock meanwhile. A host that is lost meanwhile is left out."""
    await host.talk.say(b"take\n")
    with suppress(HostError):
        async for word in _words(host.talk):
            if word.hold != "waits":
                return
            yield word


async def _words(talk: Conversation) -> AsyncIterator[protocol.Hold]:
    async for line in talk.lines:
        if line.raw.startswith('{"hold"'):  # otherwise it is output of a login shell
            with suppress(protocol.ProtocolError):
                yield answers.value(protocol.Hold, line)


async def _beat(hosts: list[_Host]) -> None:
    while True:
        await asyncio.sleep(deadlines.HOLD_BEAT)
        await asyncio.gather(*(host.talk.say(b"\n") for host in hosts))


async def _let_go(host: _Host) -> None:
    """Release a host, and return once the process there has ended."""
    with suppress(TimeoutError, HostError):
        async with asyncio.timeout(deadlines.CLOSE):
            await host.talk.finish()
            async for _ in host.talk.lines:
                pass
