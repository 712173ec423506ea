"""Stops everything of ours on every host, and verifies that nothing is left.

The hosts are those of the inventory and of the ledger. First all runs end, on all hosts: if workers ended before their
coordinator, it would record them as lost. Then, on all hosts in parallel, the agent stops Ray and all other processes
with our mark (by PID, start time and mark), and is removed. Runs with their checkpoints stay. If a host has runs, the
agent's files stay too, so that the runs can be listed and read while the cluster is down. Environments stay unless they
are purged; a purge leaves the runs alone. What stays is named, host by host. A host that can't be reached keeps its
ledger entry and is cleaned at the next ``down``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from hetero_tui import deadlines, events
from hetero_tui.errors import CommandFailed, HostError, Unreachable
from hetero_tui.events import ClusterState, Emit, HostState
from hetero_tui.fleet import agent
from hetero_tui.fleet.ledger import Ledger, place_of
from hetero_tui.fleet.probing import changed_by, state_after
from hetero_tui.intents import AGENT, RUNS, HostItem, TeardownPreview, TeardownReport
from hetero_tui.inventory import Host
from hetero_tui.state import IN_CLUSTER, State
from hetero_tui.text import HostText, last_lines, one_line
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.protocol import CLUSTER_MARK

STEP = "down"

# An installation whose laptop is gone may still run there. The mark of a complete environment is removed first. What is
# removed is named from the home folder: whatever a shell makes of a script, nothing of the user's has such a name.
_PURGE = """here=$(unset CDPATH; cd "$0" 2>/dev/null && pwd) || exit 0
if [ -e "$0/env" ] || [ -e "$0/install" ]; then
  for place in $(grep -slzx "$1=$here" /proc/[0-9]*/environ 2>/dev/null); do
    process=${place#/proc/}; kill -KILL "${process%/environ}" 2>/dev/null
  done
  size=$(du -skc "$0/env" "$0/install" 2>/dev/null | tail -n 1 | cut -f 1)
  rm -f "$0/env/ready"; rm -rf "$0/env" "$0/install" || exit 1
  echo "ht:size $size"
fi
gone() { [ -e "$1" ] || return 0; rm -rf "$1" || exit 1; echo "ht:gone ${1##*/}"; }
gone "$0/agent"; gone "$0/profiles"
rmdir "$0" 2>/dev/null; rmdir .hetero-tui 2>/dev/null; exit 0
"""
_LIST = 'cd "$0" 2>/dev/null || exit 0; for name in .[!.]* *; do [ -e "$name" ] && echo "ht:kept $name"; done; exit 0'
_KINDS = {"env": "environment", "install": "environment", "runs": RUNS, "agent": AGENT, "profiles": "measurements"}
"""What the folders are called that stay: the agent reads the runs, measurements are for plans."""

_MOST_KEPT = 50
"""Names in a cluster's folder that are told; ours are fewer."""

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
    others = [
        each.id for each in state.runs or () if not (each.state.final or (run is not None and each.id == run.run))
    ]
    live = "; ".join(filter(None, (live, *others)))
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
    hosts: Mapping[Host, Transport],
    former: Mapping[Host, Transport],
    ledger: Ledger,
    environments: Ledger,
    emit: Emit,
    *,
    purge: bool,
) -> TeardownReport:
    """Stop and remove on all hosts in parallel; an error of a host becomes a leftover. ``purge``: environments go, too.

    Hosts that are no longer in the inventory as the ledger has them (``former``) follow, since one may be the same
    machine as another. If one does not answer at its former address and is clean at the present one, it has moved.
    """
    emit(events.ClusterChanged(state=ClusterState.STOPPING))
    nodes = {place_of(entry.host) for entry in ledger.entries()}
    equipped = {place_of(entry.host) for entry in environments.entries()} if purge else set()
    everything = {**hosts, **former}
    ended = await asyncio.gather(*(_end_runs(cluster, transport) for transport in everything.values()))
    runs = dict(zip(everything, ended, strict=True))
    found: dict[Host, TeardownReport] = {}
    for group in (hosts, former):
        reports = await asyncio.gather(
            *(
                _tear_down(cluster, transport, runs[host], place_of(host) in nodes | equipped, purge, emit)
                for host, transport in group.items()
            )
        )
        found |= zip(group, reports, strict=True)
    stopped = [host for host, report in found.items() if not report.leftovers and not report.unseen]
    clean = {host.name for host in stopped if host in hosts}
    for host in [host for host in former if isinstance(runs[host], Unreachable) and host.name in clean]:
        del found[host]
        ledger.cleaned(host)
        environments.cleaned(host)
    for host, report in found.items():
        if place_of(host) in nodes and not report.leftovers:
            ledger.cleaned(host)
    due = {host: everything[host] for host in stopped} if purge else {}
    whole = _joined([*found.values(), await _purge_all(cluster, due, environments, emit)])
    kept = await asyncio.gather(*(_kept(cluster, everything[host]) for host in stopped))
    whole = replace(whole, kept=tuple(entry for entries in kept for entry in entries))
    if not whole.leftovers:
        ledger.forget_token()
    left = ", ".join(dict.fromkeys(entry.host for entry in whole.leftovers))
    detail = f"but not on {left}, where it may still run" if left else ""
    emit(events.ClusterChanged(state=ClusterState.DOWN, detail=detail))
    return whole


def _joined(reports: Sequence[TeardownReport]) -> TeardownReport:
    return TeardownReport(
        removed=tuple(entry for report in reports for entry in report.removed),
        leftovers=tuple(entry for report in reports for entry in report.leftovers),
        unseen=tuple(name for report in reports for name in report.unseen),
    )


async def _purge_all(cluster: str, hosts: Mapping[Host, Transport], environments: Ledger, emit: Emit) -> TeardownReport:
    """Remove the environments of these hosts, on which no node runs, and bring the ledger up to date."""

    async def one(host: Host, transport: Transport) -> TeardownReport:
        try:
            removed = await _purge(cluster, transport)
        except HostError as error:
            emit(changed_by(error, error.host))
            detail = f"{error.cause}; it is cleaned by the next `hetero-tui down --purge`"
            return TeardownReport(leftovers=(HostItem(host=transport.host, kind="environment", detail=detail),))
        environments.cleaned(host)
        return TeardownReport(removed=removed)

    return _joined(await asyncio.gather(*(one(host, transport) for host, transport in hosts.items())))


async def _end_runs(cluster: str, transport: Transport) -> tuple[HostItem, ...] | HostError | None:
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
            return tuple(HostItem(host=transport.host, kind="process", detail=name) for name in report.stopped)
    return ()


async def _tear_down(
    cluster: str,
    transport: Transport,
    runs: tuple[HostItem, ...] | HostError | None,
    touched: bool,
    is_purged: bool,
    emit: Emit,
) -> TeardownReport:
    """Clean one host on which ``runs`` have already ended; ``is_purged``: its environment goes next."""
    name = transport.host
    try:
        if isinstance(runs, HostError):
            raise runs
        await transport.connect()
        report = TeardownReport()
        if runs is not None:
            report = await _clean(cluster, transport, emit)
            report = replace(report, removed=(*runs, *report.removed))
    except HostError as error:
        emit(changed_by(error, error.host))
        if not touched:
            return TeardownReport(unseen=(name,))  # the ledger says that nothing was ever done there
        detail = f"{error.cause}; it is cleaned by the next `hetero-tui down{' --purge' * is_purged}`"
        if state_after(error) is HostState.REFUSED and error.hint:  # nor will the next one get in by itself
            detail = f"{detail}, once it lets this computer in -> {error.hint}"
        return TeardownReport(leftovers=(HostItem(host=name, kind="host", detail=detail),))
    ran = any(entry.kind == "process" for entry in report.removed)  # so it was fit; of others that is not known
    state = HostState.FAILED if report.leftovers else HostState.READY if ran and not is_purged else HostState.IDLE
    emit(events.HostChanged(host=name, state=state, detail="left behind" if report.leftovers else ""))
    return report


async def _purge(cluster: str, transport: Transport) -> tuple[HostItem, ...]:
    """Remove the environment and the installer's files. Raises HostError."""
    command = ["sh", "-c", _PURGE, agent.folder(cluster), CLUSTER_MARK]
    done = await transport.run(command, step="purge", deadline=deadlines.PURGE)
    if done.exit_status != 0:
        cause = f"its environment could not be removed: {last_lines(done.stderr, 1) or 'unknown reason'}"
        raise CommandFailed(transport.host, cause, step="purge", hint="see who owns what is left there")
    size = (done.stdout.last("ht:size ") or "").removeprefix("ht:size ").strip()
    folder, host = agent.home_folder(cluster), transport.host
    gone = tuple(HostItem(host=host, kind="folder", detail=f"{folder}/{name}") for name in _named(done.stdout, "gone"))
    if not size.isdecimal() or len(size) > 15:
        return gone
    detail = f"{folder}/env ({int(size) / 1e6:,.1f} GB)"
    return (HostItem(host=host, kind="environment", detail=detail), *gone)


async def _kept(cluster: str, transport: Transport) -> tuple[HostItem, ...]:
    """What there is in the cluster's folder on a host that was cleaned; nothing of one that can't be asked any more."""
    try:
        done = await transport.run(["sh", "-c", _LIST, agent.folder(cluster)], step=STEP, deadline=deadlines.COMMAND)
    except HostError:
        return ()
    folder = agent.home_folder(cluster)
    return tuple(
        HostItem(host=transport.host, kind=_KINDS.get(name, "folder"), detail=f"{folder}/{name}")
        for name in _named(done.stdout, "kept")
    )


def _named(output: HostText, word: str) -> list[str]:
    """The names that a script of ours printed after ``ht:word``."""
    lines = (line for line in output.raw.splitlines() if line.startswith(f"ht:{word} "))
    return [one_line(line.partition(" ")[2]) for line in itertools.islice(lines, _MOST_KEPT)]


async def _clean(cluster: str, transport: Transport, emit: Emit) -> TeardownReport:
    name = transport.host
    emit(events.HostChanged(host=name, state=HostState.STOPPING))
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
    removed: list[HostItem] = []
    if answered is not None:
        report = agent.answer(protocol.StopReport, name, answered, step=STEP)
        removed += [HostItem(host=name, kind="process", detail=process) for process in report.stopped]
        removed += [HostItem(host=name, kind="folder", detail=path) for path in report.removed]
        if report.leftovers:
            left = tuple(HostItem(host=name, kind=entry.kind, detail=entry.detail) for entry in report.leftovers)
            return TeardownReport(removed=tuple(removed), leftovers=left)
    # Environment and runs (with their logs) stay, and beside runs the agent, which is what reads them. Ray's log went
    # stale with it, and empty folders do not stay.
    script = (
        f'test -d "$0" || exit {_AGENT_NOT_REMOVED}\n'
        'rm -rf "$0"/agent.new.* "$0"/agent.old.* "$0/agent.lock" "$0/token" "$0"/token.* "$0"/tls.pem*'
        ' "$0"/authority.pem* "$0/processes" "$0/logs" "$0/plans" || exit 1\n'
        f'rmdir "$0/runs" 2>/dev/null; if [ -e "$0/runs" ]; then exit {_AGENT_NOT_REMOVED}; fi\n'
        f'if [ -e "$0/agent" ]; then status=0; else status={_AGENT_NOT_REMOVED}; fi; rm -rf "$0/agent" || exit 1\n'
        'rmdir "$0" 2>/dev/null; rmdir .hetero-tui 2>/dev/null; exit $status\n'
    )
    cleaned = await transport.run(["sh", "-c", script, agent.folder(cluster)], step=STEP, deadline=deadlines.COMMAND)
    if cleaned.exit_status == _AGENT_NOT_REMOVED:
        return TeardownReport(removed=tuple(removed))
    if cleaned.exit_status != 0:
        detail = last_lines(cleaned.stderr, 1) or agent.home_folder(cluster)
        return TeardownReport(removed=tuple(removed), leftovers=(HostItem(host=name, kind="folder", detail=detail),))
    removed.append(HostItem(host=name, kind="folder", detail=f"{agent.home_folder(cluster)}/agent"))
    return TeardownReport(removed=tuple(removed))
