"""Stops everything of ours on every host, and verifies that nothing is left.

The hosts are those of the inventory and of the ledger. First all runs end, on all hosts: if workers ended before their
coordinator, it would record them as lost. Then, on all hosts in parallel, the agent stops Ray and all other processes
with our mark (by PID, start time and mark), and is removed. Runs with their checkpoints stay. If a host has runs, the
agent's files stay too, so that the runs can be listed and read while the cluster is down. Environments stay unless they
are purged. A host that can't be reached keeps its ledger entry and is cleaned at the next ``down``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from hetero_tui import deadlines, events
from hetero_tui.errors import CommandFailed, HostError
from hetero_tui.events import ClusterState, Emit, HostState
from hetero_tui.fleet import agent
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.probing import state_after
from hetero_tui.intents import Leftover, Removed, TeardownPreview, TeardownReport
from hetero_tui.state import IN_CLUSTER, State
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.protocol import CLUSTER_MARK

STEP = "stop node"

# An installation whose laptop is gone may still run there. The mark of a complete environment is removed first. What is
# removed is named from the home folder: whatever a shell makes of a script, nothing of the user's has such a name.
_PURGE = """[ -e "$0/env" ] || [ -e "$0/install" ] || exit 0
here=$(unset CDPATH; cd "$0" && pwd) || exit 0
for place in $(grep -slzx "$1=$here" /proc/[0-9]*/environ 2>/dev/null); do
  process=${place#/proc/}; kill -KILL "${process%/environ}" 2>/dev/null
done
size=$(du -skc "$0/env" "$0/install" 2>/dev/null | tail -n 1 | cut -f 1)
rm -f "$0/env/ready"; rm -rf "$0/env" "$0/install" "$0/agent" "$0/profiles" || exit 1
echo "ht:size $size"
rmdir "$0" 2>/dev/null; rmdir .hetero-tui 2>/dev/null; exit 0
"""
_AGENT_NOT_REMOVED = 95
"""Exit status of the clean-up if the agent's files stay, or were not there."""


_WITH_RAY = (*IN_CLUSTER, HostState.STARTING, HostState.RESTARTING, HostState.FAILED)


def preview(state: State, touched: Collection[str]) -> TeardownPreview:
    """Preview what :func:`tear_down` would do, as far as is known; ``touched`` are the ledger's hosts. Pure."""
    run = state.run
    live = ""
    if run is not None and not run.state.final:
        step = run.step if run.behind is None else run.behind.step
        saved = f"last checkpoint: step {run.checkpoint_step:,}" if run.checkpoint else "no checkpoint yet"
        live = f"{run.run} at step {step:,}" + (f" ({saved})" if run.behind is None else "")
    with_ray = [host.name for host in state.hosts if host.state in _WITH_RAY]
    stops: tuple[str, ...] = ()
    if with_ray:
        stops = (f"Ray on {', '.join(with_ray)}",)
    elif touched:
        stops = (f"what was started on {', '.join(sorted(touched))}",)
    away = tuple(host.name for host in state.hosts if host.state is HostState.UNREACHABLE and host.name in touched)
    return TeardownPreview(cluster=state.cluster, running=live, stops=stops, unreachable=away)


def announcement(preview: TeardownPreview) -> str:
    """Announce in one line what is about to be stopped, as far as is known before any host is asked. Pure."""
    known = [part for part in (preview.running, *preview.stops) if part]
    return f"tearing {preview.cluster} down: {'; '.join([*known, 'every host is looked at'])}"


async def tear_down(
    cluster: str,
    transports: Mapping[str, Transport],
    ledger: Ledger,
    emit: Emit,
    purge: Collection[str],
    environments: Ledger,
) -> TeardownReport:
    """Stop and remove on all hosts in parallel; an error of a host becomes a leftover.

    Environments are removed on the hosts of ``purge`` and then from the ledger ``environments``.
    """
    emit(events.ClusterChanged(time=time.time(), state=ClusterState.STOPPING))
    nodes = {entry.host.name for entry in ledger.entries()}
    equipped = {entry.host.name for entry in environments.entries()} & {*purge}
    ended = await asyncio.gather(*(_end_runs(cluster, transport) for transport in transports.values()))
    reports = await asyncio.gather(
        *(
            _tear_down(cluster, transport, runs, transport.host in nodes | equipped, transport.host in purge, emit)
            for transport, runs in zip(transports.values(), ended, strict=True)
        )
    )
    for name, report in zip(transports, reports, strict=True):
        if name in nodes and not report.leftovers:
            ledger.cleaned(name)
        if name in equipped and not report.leftovers:
            environments.cleaned(name)
    whole = TeardownReport(
        removed=tuple(entry for report in reports for entry in report.removed),
        leftovers=tuple(entry for report in reports for entry in report.leftovers),
        unseen=tuple(name for report in reports for name in report.unseen),
    )
    if not whole.leftovers:
        ledger.forget_token()
    left = ", ".join(dict.fromkeys(entry.host for entry in whole.leftovers))
    detail = f"but not on {left}, where it may still run" if left else ""
    emit(events.ClusterChanged(time=time.time(), state=ClusterState.DOWN, detail=detail))
    return whole


async def purge_hosts(
    cluster: str, transports: Mapping[str, Transport], ledger: Ledger, environments: Ledger, emit: Emit
) -> None:
    """Remove everything of ours, including environments, from those of these hosts that answer."""
    reports = await asyncio.gather(
        *(_tear_down(cluster, transport, (), True, True, emit) for transport in transports.values())
    )
    for name, report in zip(transports, reports, strict=True):
        if not report.leftovers:
            ledger.cleaned(name)
            environments.cleaned(name)
            text = "its environment is gone, as `down --purge` wanted while it was away"
            emit(events.Notice(time=time.time(), level=events.Level.GOOD, text=text, host=name))


async def _end_runs(cluster: str, transport: Transport) -> tuple[Removed, ...] | HostError | None:
    """End the runs on a host; returns what ended, None if it has no folder of ours, or why it can't be asked."""
    try:
        await transport.connect()
        done = await transport.run(["test", "-e", agent.folder(cluster)], step=STEP, deadline=deadlines.COMMAND)
    except HostError as error:
        return error
    if done.exit_status != 0:
        return None
    arguments = ("host.node", "stop-runs", "--folder", agent.home_folder(cluster))
    with suppress(HostError):  # an older agent, or a broken connection; later steps end the runs or report
        answered = await agent.call(transport, cluster, *arguments, step=STEP, deadline=deadlines.NODE_STOP)
        if answered is not None:
            report = agent.answer(protocol.StopReport, transport.host, answered, step=STEP)
            return tuple(Removed(host=transport.host, kind="process", detail=name) for name in report.stopped)
    return ()


async def _tear_down(
    cluster: str,
    transport: Transport,
    runs: tuple[Removed, ...] | HostError | None,
    touched: bool,
    purge: bool,
    emit: Emit,
) -> TeardownReport:
    """Clean one host on which ``runs`` have already ended."""
    name = transport.host
    try:
        if isinstance(runs, HostError):
            raise runs
        await transport.connect()
        report = TeardownReport()
        if runs is not None:
            report = await _clean(cluster, transport, emit)
            report = replace(report, removed=(*runs, *report.removed))
        if purge and not report.leftovers:
            report = replace(report, removed=(*report.removed, *await _purge(cluster, transport)))
    except HostError as error:
        emit(
            events.HostChanged(
                time=time.time(), host=name, state=state_after(error), detail=error.cause, hint=error.hint
            )
        )
        if not touched:
            return TeardownReport(unseen=(name,))  # the ledger says that nothing was ever done there
        detail = f"{error.cause}; it is cleaned by the next `hetero-tui down`"
        if state_after(error) is HostState.REFUSED and error.hint:  # nor will the next one get in by itself
            detail = f"{detail}, once it lets this computer in -> {error.hint}"
        return TeardownReport(leftovers=(Leftover(host=name, kind="host", detail=detail),))
    ran = any(entry.kind == "process" for entry in report.removed)  # so it was fit; of others that is not known
    state = HostState.FAILED if report.leftovers else HostState.READY if ran and not purge else HostState.IDLE
    emit(events.HostChanged(time=time.time(), host=name, state=state, detail="left behind" if report.leftovers else ""))
    return report


async def _purge(cluster: str, transport: Transport) -> tuple[Removed, ...]:
    """Remove the environment and the installer's files. Raises HostError."""
    command = ["sh", "-c", _PURGE, agent.folder(cluster), CLUSTER_MARK]
    done = await transport.run(command, step="purge", deadline=deadlines.PURGE)
    if done.exit_status != 0:
        cause = f"its environment could not be removed: {last_lines(done.stderr, 1) or 'unknown reason'}"
        raise CommandFailed(transport.host, cause, step="purge", hint="see who owns what is left there")
    size = (done.stdout.last("ht:size ") or "").removeprefix("ht:size ").strip()
    if not size.isdecimal() or len(size) > 15:
        return ()
    detail = f"{agent.home_folder(cluster)}/env ({int(size) / 1e6:,.1f} GB)"
    return (Removed(host=transport.host, kind="environment", detail=detail),)


async def _clean(cluster: str, transport: Transport, emit: Emit) -> TeardownReport:
    name = transport.host
    emit(events.HostChanged(time=time.time(), host=name, state=HostState.STOPPING))
    answered = await agent.call(
        transport,
        cluster,
        "host.node",
        "stop",
        "--folder",
        agent.home_folder(cluster),
        step=STEP,
        deadline=deadlines.NODE_STOP,
    )
    removed: list[Removed] = []
    if answered is not None:
        report = agent.answer(protocol.StopReport, name, answered, step=STEP)
        removed += [Removed(host=name, kind="process", detail=process) for process in report.stopped]
        removed += [Removed(host=name, kind="folder", detail=path) for path in report.removed]
        if report.leftovers:
            left = tuple(Leftover(host=name, kind=entry.kind, detail=entry.detail) for entry in report.leftovers)
            return TeardownReport(removed=tuple(removed), leftovers=left)
    # Environment and runs (with their logs) stay, and beside runs the agent, which is what reads them. Ray's log went
    # stale with it, and empty folders do not stay.
    script = (
        f'test -d "$0" || exit {_AGENT_NOT_REMOVED}\n'
        'rm -rf "$0"/agent.new.* "$0"/agent.old.* "$0/agent.lock" "$0/token" "$0"/token.* "$0"/tls.pem*'
        ' "$0/processes" "$0/logs" || exit 1\n'
        f'rmdir "$0/runs" 2>/dev/null; if [ -e "$0/runs" ]; then exit {_AGENT_NOT_REMOVED}; fi\n'
        f'if [ -e "$0/agent" ]; then status=0; else status={_AGENT_NOT_REMOVED}; fi; rm -rf "$0/agent" || exit 1\n'
        'rmdir "$0" 2>/dev/null; rmdir .hetero-tui 2>/dev/null; exit $status\n'
    )
    cleaned = await transport.run(["sh", "-c", script, agent.folder(cluster)], step=STEP, deadline=deadlines.COMMAND)
    if cleaned.exit_status == _AGENT_NOT_REMOVED:
        return TeardownReport(removed=tuple(removed))
    if cleaned.exit_status != 0:
        detail = last_lines(cleaned.stderr, 1) or agent.home_folder(cluster)
        return TeardownReport(removed=tuple(removed), leftovers=(Leftover(host=name, kind="folder", detail=detail),))
    removed.append(Removed(host=name, kind="folder", detail=f"{agent.home_folder(cluster)}/agent"))
    return TeardownReport(removed=tuple(removed))
