"""Follow a run's logs for as long as the run goes on, on whichever head: after a failover from the next one.

A head that is lost never says that its coordinator has ended. Once the connection to it is broken, the other hosts are
asked whether the run goes on elsewhere; once its coordinator ended without a last word, whether it is started again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from hetero_tui import deadlines
from hetero_tui.errors import HostError, RunError
from hetero_tui.fleet.live import LiveFleet, cancel
from hetero_tui.intents import LoggedLine
from hetero_tui.runs.listing import find_among
from hetero_tui.runs.logs import HostPlace, logs_of
from remote_agent import protocol
from remote_agent.states import RunState

Place = tuple[str, protocol.RunSummary]
"""The head of a run, and how the run stands there."""

_WAITING = 1000
"""Lines that wait to be taken."""

Lines = Callable[[Place, Callable[[HostError], None]], AsyncGenerator[LoggedLine]]
"""The lines of a run with this head until its coordinator ends; it is told of hosts whose connection broke."""


Runs = tuple[tuple[str, protocol.RunSummary], ...]


def logs_of_run(
    fleet: LiveFleet,
    found: Place,
    status: Callable[[], Awaitable[Runs]],
    host: str,
    *,
    follow: bool,
    failed: Callable[[HostError], None],
    broken: Callable[[HostError], None],
) -> AsyncGenerator[LoggedLine]:
    """The lines of a run that was found just now, of ``host`` or of all; with ``follow`` until it has ended."""
    read: dict[str, HostPlace] = {}

    def lines(place: Place, lost: Callable[[HostError], None]) -> AsyncGenerator[LoggedLine]:
        links, head = fleet.answering, place[0]
        wanted = {host, *([head] if follow else [])} if host else links.keys()
        asked = {name: link for name, link in links.items() if name in wanted}
        return logs_of(asked, fleet.cluster, place[1], head, follow=follow, failed=failed, broken=lost, places=read)

    async def ask() -> Place:
        return find_among(await status(), found[1].id)

    return follow_logs(found, lines, ask, broken) if follow else lines(found, broken)


async def follow_logs(
    place: Place, lines: Lines, ask: Callable[[], Awaitable[Place]], broken: Callable[[HostError], None]
) -> AsyncGenerator[LoggedLine]:
    """Yield the lines of a run until it has ended; where it had before, those that there are.

    Args:
        broken: is told of each host whose connection broke.
    """
    known: Place | None = place
    was_over = place[1].state.final
    while known is not None:
        coming: asyncio.Queue[LoggedLine | Place | None] = asyncio.Queue(_WAITING)
        reading = asyncio.create_task(_read(known, lines, ask, broken, coming), name="follow logs")
        try:
            while isinstance(entry := await coming.get(), LoggedLine):
                yield entry
            if entry is None:
                await reading
        finally:
            await cancel(reading)
        if entry is None and was_over:
            return
        known = entry if entry is not None else await _started_again(ask)


async def _read(
    place: Place,
    lines: Lines,
    ask: Callable[[], Awaitable[Place]],
    broken: Callable[[HostError], None],
    into: asyncio.Queue[LoggedLine | Place | None],
) -> None:
    """Put the lines of one head into the queue, then None, or where the run went on in the meantime."""
    looking: list[asyncio.Task[None]] = []

    async def look() -> None:
        while True:
            await asyncio.sleep(deadlines.HEAD_LOOK_EVERY)
            try:
                found = await ask()
            except RunError:
                continue  # none of those that answer has it
            if found[0] != place[0] and not found[1].state.final:
                await into.put(found)
                return

    def lost(error: HostError) -> None:
        broken(error)
        if error.host == place[0] and not looking:
            looking.append(asyncio.create_task(look(), name="look for a new head"))

    try:
        async with aclosing(lines(place, lost)) as coming:
            async for entry in coming:
                await into.put(entry)
    except Exception:
        await into.put(None)  # the reader of the queue then meets the error
        raise
    else:
        await into.put(None)
    finally:
        await cancel(*looking)


async def _started_again(ask: Callable[[], Awaitable[Place]]) -> Place | None:
    """Where a run goes on whose coordinator has ended; None: it is over, or nothing started it again."""
    ends = time.monotonic() + deadlines.RUN_RESUMED
    while True:
        try:
            found = await ask()
        except RunError:
            return None
        if not found[1].state.final:
            return found
        if found[1].state is not RunState.LOST or time.monotonic() > ends:
            return None
        await asyncio.sleep(deadlines.HEAD_LOOK_EVERY)
