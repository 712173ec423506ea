"""Hosts that leave a run that is under way, and hosts that join it: said to its coordinator, which does the rest."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_tui.errors import CommandFailed, RunError
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import agent
from hetero_tui.fleet.survey import Surveyed
from hetero_tui.inventory import Inventory
from hetero_tui.runs.launch import plan_devices
from hetero_tui.runs.listing import live_run
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol


async def drain(cluster: str, transports: Mapping[str, Transport], host: str) -> str:
    """Have ``host`` leave the run that is under way, after its step and with nothing lost; the run's name.

    Raises:
        RunError: no run is under way.
        HostError: its head failed at it.
    """
    found = await live_run(cluster, transports)
    if found is None:
        raise RunError("no run is under way", step="drain", hint="`hetero-tui runs` lists the runs")
    head, run = found
    await _tell(cluster, transports[head], run.id, protocol.RunCommand(command="drain", host=host))
    return run.id


async def offer(
    inventory: Inventory,
    transports: Mapping[str, Transport],
    facts: Mapping[str, HostFacts],
    new: Mapping[str, Surveyed],
) -> str | None:
    """Have hosts that are new in the cluster take part in the run that is under way.

    Returns:
        The run's name; None when none is under way, or none of the hosts has a device that trains.

    Raises:
        HostError: its head failed at it.
    """
    found = await live_run(inventory.cluster, transports)
    if found is None:
        return None
    head, run = found
    try:
        devices = plan_devices(inventory, facts, new)
    except RunError:
        return None
    await _tell(inventory.cluster, transports[head], run.id, protocol.RunCommand(command="add", devices=devices))
    return run.id


async def _tell(cluster: str, transport: Transport, run: str, command: protocol.RunCommand) -> None:
    done = await agent.call(
        transport,
        cluster,
        "runs",
        *("--folder", agent.home_folder(cluster), "--tell", run),
        step=command.command,
        stdin=protocol.encode(command).encode() + b"\n",
    )
    if done is None or done.exit_status != 0:
        detail = "no agent there" if done is None else last_lines(done.stderr, 1)
        raise CommandFailed(transport.host, detail, step=command.command, hint="`hetero-tui runs` lists the runs")
