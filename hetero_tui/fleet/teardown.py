"""Stop everything of ours on every host, and prove that nothing is left.

Which hosts: those of the inventory and those that the ledger still names. On each: runs, then Ray, then whatever else
carries our mark (the agent does that, by PID, start time and mark); then the agent itself goes. Environments and runs
with their checkpoints stay. A host that can't be reached keeps its ledger entry and is cleaned at the next ``down``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from hetero_tui import deadlines, events
from hetero_tui.errors import HostError
from hetero_tui.events import ClusterState, Emit, HostState
from hetero_tui.fleet import agent
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.probing import state_after
from hetero_tui.intents import Leftover, Removed, TeardownReport
from hetero_tui.text import last_lines
from hetero_tui.transport import Transport
from remote_agent import protocol

STEP = "stop node"


async def tear_down(cluster: str, transports: Mapping[str, Transport], ledger: Ledger, emit: Emit) -> TeardownReport:
    """Stop and remove on all hosts at once; never raises for what a host does: it becomes a leftover."""
    emit(events.ClusterChanged(time=time.time(), state=ClusterState.STOPPING))
    touched = {entry.host.name for entry in ledger.entries()}
    reports = await asyncio.gather(
        *(_tear_down(cluster, transport, transport.host in touched, emit) for transport in transports.values())
    )
    for name, report in zip(transports, reports, strict=True):
        if name in touched and not report.leftovers:
            ledger.cleaned(name)
    whole = TeardownReport(
        removed=tuple(entry for report in reports for entry in report.removed),
        leftovers=tuple(entry for report in reports for entry in report.leftovers),
    )
    if not whole.leftovers:
        ledger.forget_token()
    emit(events.ClusterChanged(time=time.time(), state=ClusterState.DOWN))
    return whole


async def _tear_down(cluster: str, transport: Transport, touched: bool, emit: Emit) -> TeardownReport:
    name = transport.host
    try:
        await transport.connect()
        report = await _clean(cluster, transport, emit)
    except HostError as error:
        emit(events.HostChanged(time=time.time(), host=name, state=state_after(error), detail=error.cause))
        if not touched:
            return TeardownReport()  # the ledger says that nothing was ever done there
        detail = f"{error.cause}; it is cleaned by the next `hetero-tui down`"
        return TeardownReport(leftovers=(Leftover(host=name, kind="host", detail=detail),))
    state = HostState.FAILED if report.leftovers else HostState.READY
    emit(events.HostChanged(time=time.time(), host=name, state=state, detail="left behind" if report.leftovers else ""))
    return report


async def _clean(cluster: str, transport: Transport, emit: Emit) -> TeardownReport:
    name = transport.host
    done = await transport.run(["test", "-e", agent.folder(cluster)], step=STEP, deadline=deadlines.COMMAND)
    if done.exit_status != 0:
        return TeardownReport()
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
    # Environment and runs (with their logs) stay; Ray's log went stale with it, and empty folders do not stay.
    script = (
        'cd "$0" || exit 0; rm -rf agent agent.new.* agent.old.* agent.lock token token.* processes logs || exit 1\n'
        'cd && rmdir "$0" 2>/dev/null; rmdir .hetero-tui 2>/dev/null; exit 0\n'
    )
    cleaned = await transport.run(["sh", "-c", script, agent.folder(cluster)], step=STEP, deadline=deadlines.COMMAND)
    if cleaned.exit_status != 0:
        detail = last_lines(cleaned.stderr, 1) or agent.home_folder(cluster)
        return TeardownReport(removed=tuple(removed), leftovers=(Leftover(host=name, kind="folder", detail=detail),))
    removed.append(Removed(host=name, kind="folder", detail=f"{agent.home_folder(cluster)}/agent"))
    return TeardownReport(removed=tuple(removed))
