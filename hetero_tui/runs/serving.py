"""A run's checkpoint behind HTTP on a host's loopback, reached from here through SSH; see :mod:`remote_agent.serve`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hetero_tui import answers, deadlines
from hetero_tui.errors import CommandFailed, HostError, RunError, UsageError
from hetero_tui.fleet import agent
from hetero_tui.planning.cluster import holders
from hetero_tui.runs.listing import find_among, list_copies, told_best
from hetero_tui.runs.weights import refuse_without
from hetero_tui.text import HostText, last_lines
from hetero_tui.transport import Transport
from hetero_tui.transport.local import LocalTransport
from remote_agent import protocol

STEP = "serve"


@dataclass(frozen=True)
class Service:
    """What answers, and where: ``url`` leads there from this computer, with ``token``.

    ``lines`` end, or raise HostError, when it is gone.
    """

    run: str
    host: str
    serving: protocol.Serving
    url: str
    token: str
    lines: AsyncIterator[HostText]


async def place_of(cluster: str, transports: dict[str, Transport], run: str | None, host: str) -> tuple[str, str]:
    """The run, and the host that serves it: ``host``, or its head where that is empty.

    Raises:
        RunError: there is no such run, or it has no checkpoint.
        UsageError: the host does not hold the newest one.
    """
    failed: list[HostError] = []
    copies = await list_copies(cluster, transports, failed.append)
    head, summary = find_among(told_best(copies), run, failed)
    able = holders(summary.id, copies)
    refuse_without(summary, has=bool(able), step=STEP)
    if host and host not in able:
        hint = f"--host {' or '.join(sorted(able))}"
        raise UsageError(f"{host} does not hold the newest checkpoint of {summary.id}", step=STEP, hint=hint)
    return summary.id, host or (head if head in able else min(able))


@asynccontextmanager
async def serving(
    transport: Transport,
    cluster: str,
    run: str,
    *,
    port: int = 0,
    device: str = "",
    choice: protocol.Choice = protocol.Choice.NEWEST,
) -> AsyncIterator[Service]:
    """Serve a checkpoint of ``run`` on a host that holds it; leaving the context ends it there.

    Raises:
        RunError: it can't be served.
        UsageError: the port is taken here.
        HostError: the host failed at it, or does not let SSH forward ports.
    """
    token = secrets.token_urlsafe(32)
    there = port if isinstance(transport, LocalTransport) else 0  # else it is wanted here, and may be taken there
    words: tuple[str, ...] = ("--folder", agent.home_folder(cluster), "--run", run, "--port", str(there))
    words += ("--device", device, "--weights", choice)
    command = agent.words(cluster, "serve", *words)
    async with transport.converse(command, step=STEP, silence=deadlines.SILENCE) as talk:
        await talk.say(f"{token}\n".encode())
        found = await _first_word(talk.lines, transport.host, run)
        async with transport.forward(found.port, port) as local:
            await _try(transport.host, local)
            url = f"http://127.0.0.1:{local}"
            yield Service(run, transport.host, found, url, token, talk.lines)


async def _first_word(lines: AsyncIterator[HostText], host: str, run: str) -> protocol.Serving:
    try:
        async for line in lines:
            if line.raw.startswith("{"):
                return answers.value(protocol.Serving, line)
    except protocol.ProtocolError as error:
        raise agent.refused(host, error, STEP) from None
    except CommandFailed as error:
        cause, _, hint = last_lines(error.output, 1).partition(" -> ")
        raise RunError(f"{run} on {host}: {cause or error.cause}", step=STEP, hint=hint) from None
    raise RunError(f"{run} on {host}: the server ended", step=STEP, hint="`hetero-tui logs` may say why")


async def _try(host: str, port: int) -> None:
    """One request without the token, which is refused with an answer where the way is open.

    Raises:
        CommandFailed: there is none.
    """
    try:
        async with asyncio.timeout(deadlines.COMMAND):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.readline()
            writer.close()
    except (OSError, TimeoutError):
        answer = b""
    if not answer.startswith(b"HTTP/1.1 401"):
        hint = "allow it there: `AllowTcpForwarding yes` (or local) in sshd_config"
        raise CommandFailed(host, "its SSH server does not forward ports", step=STEP, hint=hint)
