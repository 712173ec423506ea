"""What a run's processes logged and printed, gathered from all hosts and merged by time.

Each host reads its own logs (``remote_agent.logs``) and sends them in order. Hosts' clocks may differ a little, and so
may the order of what happened on two of them within that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hetero_tui import answers, deadlines
from hetero_tui.errors import CommandFailed, HostError
from hetero_tui.fleet import agent
from hetero_tui.fleet.live import cancel
from hetero_tui.text import HostText
from hetero_tui.transport import Transport
from remote_agent import protocol

STEP = "logs"

AROUND_S = 60.0
"""Seconds before a run's first event and after its last one for which a host's own lines belong to it."""

_MAX_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Logged:
    """One line: of which host, and of which of its processes."""

    host: str
    line: protocol.LogLine


_There = asyncio.Queue[Logged | None]
"""A host's lines that are there, then None."""

_Live = asyncio.Queue[Logged | str]
"""Lines of all hosts as they come, and the name of each host that has ended."""


async def logs_of(
    transports: Mapping[str, Transport],
    cluster: str,
    summary: protocol.RunSummary,
    head: str,
    *,
    follow: bool,
    failed: Callable[[HostError], None],
) -> AsyncGenerator[Logged]:
    """Yield what is there, by time; with ``follow`` then what comes, until the coordinator on ``head`` ends.

    Args:
        transports: to the hosts that are asked.
        cluster: its name.
        summary: the run.
        head: where its coordinator is; with ``follow`` one of the hosts.
        follow: go on.
        failed: is told of each host that can't be asked, or can't any more; the others' lines come all the same.
    """
    there: dict[str, _There] = {host: asyncio.Queue(_MAX_WAITING) for host in transports}
    live: _Live = asyncio.Queue(_MAX_WAITING)
    readers = {
        host: asyncio.create_task(
            _read(transport, cluster, _arguments(summary, host == head, follow), there[host], live, failed),
            name=f"logs of {host}",
        )
        for host, transport in transports.items()
    }
    try:
        async for entry in _merged(there):
            yield entry
        while follow and (coming := await live.get()) != head:
            if isinstance(coming, Logged):
                yield coming
        ends = time.monotonic() + deadlines.LAST_LINES
        while follow and (left := ends - time.monotonic()) > 0:
            try:
                coming = await asyncio.wait_for(live.get(), left)
            except TimeoutError:
                return
            if isinstance(coming, Logged):
                yield coming
    finally:
        await cancel(*readers.values())


def _arguments(summary: protocol.RunSummary, is_head: bool, follow: bool) -> list[str]:
    words = ["--run", summary.id]
    if summary.started is not None:
        words += ["--since", f"{summary.started - AROUND_S:.3f}"]
    if summary.ended is not None:
        words += ["--until", f"{summary.ended + AROUND_S:.3f}"]
    if follow:
        words += ["--follow"]
        words += ["--process-name", protocol.run_process_name(summary.id)] if is_head else []
    return words


async def _read(
    transport: Transport,
    cluster: str,
    arguments: list[str],
    there: _There,
    live: _Live,
    failed: Callable[[HostError], None],
) -> None:
    """Put a host's lines into ``there``, and once all that were there have come into ``live``."""
    into: asyncio.Queue[Any] = there
    folder = agent.home_folder(cluster)
    try:
        async with agent.follow(transport, cluster, "logs", "--folder", folder, *arguments, step=STEP) as lines:
            async for text in lines:
                if not text.raw and "--follow" in arguments and into is there:
                    await there.put(None)
                    into = live
                line = _decoded(text)
                if line is not None:
                    await into.put(Logged(transport.host, line))
    except HostError as error:
        if not isinstance(error, CommandFailed) or error.exit_status != agent.NOT_THERE:
            failed(error)
    if into is there:
        await there.put(None)
    await live.put(transport.host)


def _decoded(text: HostText) -> protocol.LogLine | None:
    """None: it is a heartbeat, a shell's banner, or of no time that can be."""
    try:
        return answers.value(protocol.LogLine, text)
    except protocol.ProtocolError:
        return None


async def _merged(queues: Mapping[str, _There]) -> AsyncGenerator[Logged]:
    """What is in the queues up to each one's None, by time."""
    heads = {host: entry for host, queue in queues.items() if (entry := await queue.get()) is not None}
    while heads:
        host = min(heads, key=lambda each: heads[each].line.time)
        yield heads[host]
        following = await queues[host].get()
        if following is None:
            del heads[host]
        else:
            heads[host] = following
