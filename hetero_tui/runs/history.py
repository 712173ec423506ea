"""A run's events as they are now, from the first to the newest: for a run that is over, and for one that is not."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from hetero_tui import answers
from hetero_tui.errors import CommandFailed, RunError
from hetero_tui.fleet import agent
from hetero_tui.transport import Transport
from remote_agent import protocol

STEP = "read events"


async def history(
    transport: Transport, cluster: str, run: str, most_steps: int | None = None
) -> AsyncGenerator[protocol.Event]:
    """Yield them. Lines that can't be read and kinds that this version does not know are left out.

    ``most_steps``: of its steps about so many, evenly spread, and the last ones; None: all.

    Raises:
        RunError: the host has none.
        HostError: it can't be asked.
    """
    path = f"{agent.home_folder(cluster)}/runs/{run}/events.jsonl"
    found = False
    few = () if most_steps is None else ("--most-steps", str(most_steps))
    try:
        async with agent.follow(transport, cluster, "follow", path, "--once", *few, step=STEP) as lines:
            async for line in lines:
                if not line.raw.startswith("{"):
                    continue  # a shell's banner
                try:
                    event = answers.event(line)
                except protocol.ProtocolError:
                    continue
                if event is not None:
                    found = True
                    yield event
    except CommandFailed as error:
        if error.exit_status != agent.NOT_THERE:
            raise
    if not found:
        raise RunError(f"{transport.host} has no events of {run}", step=STEP, hint="`hetero-tui runs` lists the runs")
