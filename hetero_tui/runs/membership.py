"""Hosts that leave a run that is under way, and hosts that join it: said to its coordinator, which does the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hetero_tui.errors import CommandFailed, HostError, RunError
from hetero_tui.fleet import agent
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.runs.launch import plan_devices
from hetero_tui.runs.listing import live_runs, with_silent
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
    """Have ``host`` leave each run that is under way, after its step and with nothing lost.

    Raises:
        RunError: no run is under way.
        HostError: its head failed at it.
    """
    asked = []
    for head, run in await _under_way(cluster, transports, "drain"):
        command = protocol.RunCommand(command=ControlCommand.DRAIN, host=host)
        asked.append(_drained(run.id, host, await _tell(cluster, transports[head], run.id, command)))
    return _together(asked)


def _drained(run: str, host: str, told: protocol.Told) -> Asked:
    if told.is_out:
        return Asked(run, f"no worker of {host} trains in {run} now, and none will until it is undrained")
    if told.stays:
        others = f"every host that trains was told to leave, and {run} needs one"
        return Asked(run, f"{others}: {host} leaves when another one takes part; `hetero-tui stop` ends the run")
    if told.again:
        return Asked(run, f"{run} was told before to go on without {host}: it leaves after the step")
    return Asked(run, f"{run} is told to go on without {host}")


def _together(asked: Sequence[Asked]) -> Asked:
    """What several runs were asked for; most often there is one."""
    return Asked(", ".join(each.run for each in asked), "; ".join(each.said for each in asked))


async def _under_way(
    cluster: str, transports: Mapping[str, Transport], step: str
) -> tuple[tuple[str, protocol.RunSummary], ...]:
    failed: list[HostError] = []
    found = await live_runs(cluster, transports, failed.append)
    if not found:
        cause, hint = with_silent("no run is under way", "`hetero-tui runs` lists the runs", failed)
        raise RunError(cause, step=step, hint=hint)
    return found


async def undrain(fleet: LiveFleet, host: str) -> Asked:
    """Have ``host`` take part again in each run that is under way: after a drain, or at once instead of after a pause.

    Raises:
        RunError: no run is under way, or the host has no device that trains, or is not in the cluster.
        HostError: its head failed at it.
    """
    found = await _under_way(fleet.cluster, fleet.transports, "undrain")
    if host not in fleet.members:
        raise RunError(f"{host} is not in the cluster", step="undrain", hint="`hetero-tui up` takes it in")
    asked = []
    for head, run in found:
        told = await _add(fleet, head, run.id, {host})
        is_in = Asked(run.id, f"{host} takes part in {run.id} already, and was not drained: nothing changes")
        asked.append(is_in if told.is_in else soon(run.id, host))
    return _together(asked)


async def offer_new(fleet: LiveFleet, before: frozenset[str]) -> str:
    """Have the hosts that joined the cluster just now take part in the runs that are under way; what came of it, or "".

    Raises:
        HostError: its head failed at it.
    """
    new = fleet.members - before
    found = await live_runs(fleet.cluster, fleet.answering) if before and new else ()
    try:
        for head, run in found:
            await _add(fleet, head, run.id, new)
    except RunError:  # none of them has a device that trains
        return ""
    return f"{', '.join(sorted(new))}: to take part in {', '.join(run.id for _, run in found)}" if found else ""


async def _add(fleet: LiveFleet, head: str, run: str, hosts: Collection[str]) -> protocol.Told:
    """Give a run the devices of these hosts; raises RunError where they have none."""
    command = protocol.RunCommand(command=ControlCommand.ADD, devices=plan_devices(fleet, hosts))
    return await _tell(fleet.cluster, fleet.transports[head], run, command)


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
