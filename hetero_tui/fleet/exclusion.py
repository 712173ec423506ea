"""One command at a time changes a cluster, whichever laptop it comes from: it holds every host that answers.

Two that start a cluster at once, or start and stop it, would undo each other's work. The second waits, and then finds
what the first has made. A host is held by a process there (``remote_agent.host.hold``) for as long as this laptop keeps
in touch with it, so nothing is left of a command that was killed. A host that does not answer, or can't be held, is
left out: it is enough that two commands have one host in common.
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
    """A host whose process is ready to hold it; ``machine`` is what every laptop knows it by."""

    machine: str
    talk: Conversation


@asynccontextmanager
async def alone(
    inventory: Inventory, transports: Mapping[str, Transport], command: str, waiting: Callable[[str], None]
) -> AsyncIterator[None]:
    """Hold the hosts for ``command``; ``waiting`` is told whose command it waits for, in words.

    Raises:
        ClusterError: another command held one of them for longer than :data:`~hetero_tui.deadlines.HOLD_WAIT`.
    """
    own = f"{getpass.getuser()}@{platform.node()}"
    owner = json.dumps({"id": secrets.token_hex(8), "by": own, "command": command})

    async with AsyncExitStack() as stack:
        ready = await asyncio.gather(*(_ready(stack, inventory, transport, owner) for transport in transports.values()))
        # Every laptop takes the machines in the same order, so that no two wait for each other.
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
    """The host once its process runs; None where none can: the command's own steps say what is wrong there."""
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
    """Take one host: each command that it is held for meanwhile. A host that is lost meanwhile is left out."""
    await host.talk.say(b"take\n")
    with suppress(HostError):
        async for word in _words(host.talk):
            if word.hold != "waits":
                return
            yield word


async def _words(talk: Conversation) -> AsyncIterator[protocol.Hold]:
    async for line in talk.lines:
        if line.raw.startswith('{"hold"'):  # else a login shell's own words
            with suppress(protocol.ProtocolError):
                yield answers.value(protocol.Hold, line)


async def _beat(hosts: list[_Host]) -> None:
    while True:
        await asyncio.sleep(deadlines.HOLD_BEAT)
        await asyncio.gather(*(host.talk.say(b"\n") for host in hosts))


async def _let_go(host: _Host) -> None:
    """Returns once nothing of the process is left there."""
    with suppress(TimeoutError, HostError):
        async with asyncio.timeout(deadlines.CLOSE):
            await host.talk.finish()
            async for _ in host.talk.lines:
                pass
