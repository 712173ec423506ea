"""Hosts that leave a run that is under way, and hosts that join it: said to its coordinator, which does the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hetero_tui.errors import CommandFailed, HostError, RunError
from hetero_tui.fleet import agent
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.runs.launch import plan_devices
from hetero_tui.runs.listing import live_run, with_silent
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.states import ControlCommand


@dataclass(frozen=True)
class Asked:
    """What a run was asked for: the run's name, and in a sentence what comes of it."""

    run: str
    said: str


def soon(run: str, host: str) -> Asked:
    """The answer where ``host`` is to take part again."""
    return Asked(run, f"{host} takes part in {run} again as soon as its worker is started")


async def drain(cluster: str, transports: Mapping[str, Transport], host: str) -> Asked:
    """Have ``host`` leave the run that is under way, after its step and with nothing lost.

    Raises:
        RunError: no run is under way.
        HostError: its head failed at it.
    """
    head, run = await _under_way(cluster, transports, "drain")
    told = await _tell(cluster, transports[head], run.id, protocol.RunCommand(command=ControlCommand.DRAIN, host=host))
    if told.is_out:
        return Asked(run.id, f"no worker of {host} trains in {run.id} now, and none will until it is undrained")
    if told.stays:
        others = f"every host that trains was told to leave, and {run.id} needs one"
        return Asked(run.id, f"{others}: {host} leaves when another one takes part; `hetero-tui stop` ends the run")
    return Asked(run.id, f"{run.id} is told to go on without {host}")


async def _under_way(cluster: str, transports: Mapping[str, Transport], step: str) -> tuple[str, protocol.RunSummary]:
    failed: list[HostError] = []
    found = await live_run(cluster, transports, failed.append)
    if found is None:
        cause, hint = with_silent("no run is under way", "`hetero-tui runs` lists the runs", failed)
        raise RunError(cause, step=step, hint=hint)
    return found


async def undrain(fleet: LiveFleet, host: str) -> Asked:
    """Have ``host`` take part again in the run that is under way: after a drain, or at once instead of after a pause.

    Raises:
        RunError: no run is under way, or the host has no device that trains, or is not in the cluster.
        HostError: its head failed at it.
    """
    head, run = await _under_way(fleet.cluster, fleet.transports, "undrain")
    if host not in fleet.members:
        raise RunError(f"{host} is not in the cluster", step="undrain", hint="`hetero-tui up` takes it in")
    await _add(fleet, head, run.id, {host})
    return soon(run.id, host)


async def offer_new(fleet: LiveFleet, before: frozenset[str]) -> str:
    """Have the hosts that joined the cluster just now take part in the run that is under way; what came of it, or "".

    Raises:
        HostError: its head failed at it.
    """
    new = fleet.members - before
    found = await live_run(fleet.cluster, fleet.answering) if before and new else None
    if found is None:
        return ""
    head, run = found
    try:
        await _add(fleet, head, run.id, new)
    except RunError:  # none of them has a device that trains
        return ""
    return f"{', '.join(sorted(new))}: to take part in {run.id}"


async def _add(fleet: LiveFleet, head: str, run: str, hosts: Collection[str]) -> None:
    """Give a run the devices of these hosts; raises RunError where they have none."""
    command = protocol.RunCommand(command=ControlCommand.ADD, devices=plan_devices(fleet, hosts))
    await _tell(fleet.cluster, fleet.transports[head], run, command)


async def _tell(cluster: str, transport: Transport, run: str, command: protocol.RunCommand) -> protocol.Told:
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
    return agent.answer(protocol.Told, transport.host, done, step=command.command)
