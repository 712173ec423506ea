"""Follows the live use of every host while it is shown: one stream for each host, with automatic reconnection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from hetero_tui import answers, deadlines, events
from hetero_tui.errors import CommandFailed, HostError, HostKeyChanged, HostKeyUnknown
from hetero_tui.events import Emit, Level
from hetero_tui.fleet import agent
from hetero_tui.transport import Transport
from remote_agent import protocol

STEP = "watch"
ROUND_TRIP_EVERY = 5.0
"""Seconds between two measurements of a link's round trip."""


async def watch(cluster: str, transport: Transport, emit: Emit, pythons: Sequence[str] = ()) -> None:
    """Follow one host until cancelled; a broken connection is reported once and reopened with growing pauses.

    On a host without our agent, one of ``pythons`` samples, from sources that leave no file there. If none of them can,
    the host is checked every few seconds, since another laptop may send the agent.

    It ends by itself if the host refuses our key or login, since this needs the user.
    """
    pauses, complained, is_sent = deadlines.reconnect_pauses(), False, True
    arguments = ("sampling", "--folder", agent.home_folder(cluster))
    while True:
        try:
            await transport.connect()
            async with (
                agent.follow(transport, cluster, *arguments, step=STEP)
                if is_sent
                else agent.follow_unsent(transport, pythons, *arguments, step=STEP)
            ) as lines:
                measured, round_trip = 0.0, None
                async for line in lines:
                    try:
                        sample = answers.value(protocol.HostSample, line)
                    except protocol.ProtocolError as error:
                        if line.raw.startswith("{") and not complained:  # else a banner, or a heartbeat
                            complained = True
                            emit(_warning(transport.host, f"what it says of its use is refused: {error}"))
                        continue
                    pauses = deadlines.reconnect_pauses()
                    if time.monotonic() - measured > ROUND_TRIP_EVERY:
                        round_trip = await transport.round_trip()
                        measured = time.monotonic()
                    emit(events.HostSampled(host=transport.host, sample=sample, round_trip_s=round_trip))
        except (HostKeyChanged, HostKeyUnknown) as error:
            emit(events.HostLost(host=transport.host, cause=error.cause, hint=error.hint))
            return
        except CommandFailed as error:
            was_sent, is_sent = is_sent, not is_sent or (error.exit_status != agent.NOT_THERE or not pythons)
            if was_sent and not is_sent:
                continue
            if error.exit_status == agent.NOT_THERE or not was_sent:  # until some laptop starts the cluster
                await asyncio.sleep(deadlines.AGENT_LOOK)
                continue
            # The agent or the node's environment is being replaced; try again.
        except HostError as error:
            pause = next(pauses)
            emit(events.HostLost(host=transport.host, cause=error.cause, hint=error.hint, retry_s=pause))
            await asyncio.sleep(pause)
            continue
        await asyncio.sleep(next(pauses))


def _warning(host: str, text: str) -> events.Notice:
    return events.Notice(level=Level.WARNING, text=text, host=host)
