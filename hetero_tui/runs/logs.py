"""Collects the logs and prints of a run's processes from all hosts, and merges them by time.

Each host reads its own logs (``remote_agent.logs``) and sends them in order. Hosts' clocks may differ a little, and so
may the order of what happened on two of them within that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from hetero_tui import answers, deadlines
from hetero_tui.errors import CommandFailed, DeadlineExceeded, HostError, Unreachable
from hetero_tui.fleet import agent
from hetero_tui.fleet.live import cancel
from hetero_tui.intents import LoggedLine
from hetero_tui.runs.listing import ignore
from hetero_tui.text import HostText
from hetero_tui.transport import Transport
from remote_agent import protocol

STEP = "logs"

AROUND_S = 60.0
"""Seconds before a run's first event and after its last one for which a host's own lines belong to it."""

_MAX_WAITING = 1000


_There = asyncio.Queue[LoggedLine | None]
"""A host's lines that are there, then None."""

_Live = asyncio.Queue[LoggedLine | str]
"""Lines of all hosts as they come, and the name of each host that has ended."""


async def logs_of(
    transports: Mapping[str, Transport],
    cluster: str,
    summary: protocol.RunSummary,
    head: str,
    *,
    follow: bool,
    failed: Callable[[HostError], None],
    broken: Callable[[HostError], None] = ignore,
    places: dict[str, HostPlace] | None = None,
) -> AsyncGenerator[LoggedLine]:
    """Yield what is there, by time; with ``follow`` then what comes, until the coordinator on ``head`` ends.

    With ``follow``, a broken connection is opened again with growing pauses, for as long as it takes, and the host's
    lines go on where they were: none is lost, none comes twice.

    Args:
        transports: to the hosts that are asked.
        head: where its coordinator is; with ``follow`` one of the hosts.
        failed: is told of each host that can't be asked, or can't any more; the others' lines come all the same.
        broken: is told of each host whose connection broke, and is tried again.
        places: how far each host's lines were read by an earlier call, which do not come again; they are carried on.
    """
    places = {} if places is None else places
    there: dict[str, _There] = {host: asyncio.Queue(_MAX_WAITING) for host in transports}
    live: _Live = asyncio.Queue(_MAX_WAITING)
    readers = {
        host: asyncio.create_task(
            _read(
                _Source(transport, cluster, tuple(_arguments(summary, host == head, follow)), follow),
                there[host],
                live,
                places.setdefault(host, HostPlace()),
                failed,
                broken,
            ),
            name=f"logs of {host}",
        )
        for host, transport in transports.items()
    }
    try:
        async for entry in _merged(there):
            yield entry
        while follow and (coming := await live.get()) != head:
            if isinstance(coming, LoggedLine):
                yield coming
        ends = time.monotonic() + deadlines.LAST_LINES
        while follow and (left := ends - time.monotonic()) > 0:
            try:
                coming = await asyncio.wait_for(live.get(), left)
            except TimeoutError:
                return
            if isinstance(coming, LoggedLine):
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


@dataclass(frozen=True, slots=True)
class _Source:
    """A host's logs of one run, and how they are read."""

    transport: Transport
    cluster: str
    arguments: tuple[str, ...]
    follow: bool

    def lines(self) -> AbstractAsyncContextManager[AsyncIterator[HostText]]:
        """All of them, from the first."""
        folder = agent.home_folder(self.cluster)
        return agent.follow(self.transport, self.cluster, "logs", "--folder", folder, *self.arguments, step=STEP)


class HostPlace:
    """How far one host's lines were read: for each process, the last time and how many lines have it.

    A host that is asked again begins again. Each process's lines come in the order of their times, so that those which
    were read are known by that, whatever has been rotated away since.
    """

    def __init__(self) -> None:
        self._read: dict[str, tuple[float, int]] = {}
        self._before: dict[str, tuple[float, int]] = {}

    def begin(self) -> None:
        """From here on they come again."""
        self._before = {process: (moment, count) for process, (moment, count) in self._read.items()}

    def is_new(self, line: protocol.LogLine) -> bool:
        """Whether this line, the next one, was not read before; it has been from now on."""
        before = self._before.get(line.process)
        if before is not None:
            moment, count = before
            if line.time < moment:
                return False
            if line.time == moment and count:
                self._before[line.process] = (moment, count - 1)
                return False
        moment, count = self._read.get(line.process, (line.time, 0))
        self._read[line.process] = (line.time, count + 1 if line.time == moment else 1)
        return True


async def _read(
    source: _Source,
    there: _There,
    live: _Live,
    place: HostPlace,
    failed: Callable[[HostError], None],
    broken: Callable[[HostError], None],
) -> None:
    """Put a host's lines into ``there``, and once all that were there have come into ``live``."""
    into: asyncio.Queue[Any] = there
    host, pauses, is_broken = source.transport.host, deadlines.reconnect_pauses(), False
    while True:
        place.begin()
        try:
            await source.transport.connect()
            async with source.lines() as lines:
                async for text in lines:
                    if not text.raw and source.follow and into is there:
                        await there.put(None)
                        into = live
                    pauses, is_broken = deadlines.reconnect_pauses(), False
                    line = _decoded(text)
                    if line is not None and place.is_new(line):
                        await into.put(LoggedLine(host, line))
            break
        except HostError as error:
            if not source.follow or not _may_come_back(error):
                if not isinstance(error, CommandFailed) or error.exit_status != agent.NOT_THERE:
                    failed(error)
                break
            if not is_broken:
                broken(error)
            is_broken = True
        if into is there:
            await there.put(None)
            into = live
        await asyncio.sleep(next(pauses))
    if into is there:
        await there.put(None)
    await live.put(host)


def _may_come_back(error: HostError) -> bool:
    """Whether it is the connection that failed: what a host refuses or lacks stays as it is."""
    is_late = isinstance(error, CommandFailed) and error.exit_status == protocol.READER_SILENT  # this laptop slept
    return is_late or isinstance(error, Unreachable | DeadlineExceeded)


def _decoded(text: HostText) -> protocol.LogLine | None:
    """None: it is a heartbeat, a shell's banner, or of no time that can be."""
    try:
        return answers.value(protocol.LogLine, text)
    except protocol.ProtocolError:
        return None


async def _merged(queues: Mapping[str, _There]) -> AsyncGenerator[LoggedLine]:
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
