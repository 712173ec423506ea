"""Keeps the current state of the inventory's hosts: connections, the last probe and survey, and live watching."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetero_tui import deadlines, events
from hetero_tui.errors import ClusterError, HostError, HostKeyUnknown
from hetero_tui.events import ClusterState, Emit, HostState
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import agent, telemetry
from hetero_tui.fleet.bring_up import UpReport, bring_up
from hetero_tui.fleet.check import check
from hetero_tui.fleet.exclusion import alone
from hetero_tui.fleet.install.bootstrap import bootstrap
from hetero_tui.fleet.install.requirements import Lack, lacking
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.fleet.ledger import Entry, Ledger, place_of
from hetero_tui.fleet.preflight import BOOTSTRAP_MENDS, judge_fleet
from hetero_tui.fleet.probing import BOOTSTRAP_BRINGS, Probed, changed_by, probe_fleet
from hetero_tui.fleet.survey import FleetView, Surveyed, head_name, mark_replaced, newest_epoch, survey
from hetero_tui.fleet.teardown import tear_down
from hetero_tui.intents import TeardownReport
from hetero_tui.inventory import Host, Inventory
from hetero_tui.inventory.adding import target_of
from hetero_tui.outcomes import BootstrapReport, CheckReport
from hetero_tui.transport import Transport, open_transport


class LiveFleet:
    """The state of all hosts; it emits each change.

    Attributes:
        transports: to every host of the inventory, connected or not.
        probed: results of the last probe; empty before the first.
        surveyed: results of the last survey.
        report: of the last bring-up; None: there was none, or another laptop did it.
    """

    def __init__(
        self,
        inventory: Inventory,
        emit: Emit,
        *,
        accept_new_host_keys: bool = False,
        path: Path | None = None,
        ledger_folder: Path | None = None,
        watches: bool = True,
    ) -> None:
        """Create the fleet without connections.

        ``path`` is the inventory's file. ``ledger_folder`` replaces the user's state folder (demo, tests). ``watches``:
        the load of hosts that answer is followed; false for a command that asks once.
        """
        self.inventory = inventory
        self.emit = emit
        self.ledger, self.environments = (
            Ledger(inventory.cluster, ledger_folder, name, inventory.hosts, path) for name in Ledger.NAMES
        )
        self.transports: dict[str, Transport] = {
            host.name: open_transport(host, inventory, accept_new_host_keys=accept_new_host_keys)
            for host in inventory.hosts
        }
        self.probed: tuple[Probed, ...] = ()
        self.surveyed: dict[str, Surveyed] = {}
        self.report: UpReport | None = None
        self._accept_new_host_keys = accept_new_host_keys
        self._watches = watches
        self._watchers: dict[str, asyncio.Task[None]] = {}

    # --- What was found ----------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.inventory.cluster

    @property
    def facts(self) -> dict[str, HostFacts]:
        """The facts of the machines that were probed successfully."""
        return {entry.host: entry.facts for entry in self.probed if entry.facts is not None}

    @property
    def answering(self) -> dict[str, Transport]:
        """The hosts that answered last; a silent host is not waited for again."""
        return {name: self.transports[name] for name, found in self.surveyed.items() if found.error is None}

    @property
    def members(self) -> frozenset[str]:
        """The hosts that were in the cluster at the last survey."""
        return frozenset(name for name, found in self.surveyed.items() if found.runs_ray)

    # --- Looking -----------------------------------------------------------------------------------------------------

    async def look(self, *, installs: bool = False) -> None:
        """Probe every host, then survey those that answered, and update the hosts' states.

        ``installs``: what is missing is installed next, so the hint to do that is left out.
        """
        emit = self._emit_without_bootstrap if installs else self.emit
        self.probed = await probe_fleet(self.inventory, self.transports, emit)
        await self._survey_probed(self.transports, emit)

    def _emit_without_bootstrap(self, event: events.Event) -> None:
        if isinstance(event, events.HostChanged) and event.hint in (BOOTSTRAP_MENDS, BOOTSTRAP_BRINGS):
            event = replace(event, hint="")
        self.emit(event)

    async def look_at(self, name: str) -> None:
        """Probe only this host, then survey it and all that answered last, and update the hosts' states."""
        answering = {name, *self.answering}
        await self._probe_again({name: self.transports[name]})
        await self._survey_probed(answering)

    async def judge_idle(self) -> None:
        """Probe the hosts that answered the last survey but have no node, and report which of them are fit."""
        idle = {name: self.transports[name] for name, found in self.surveyed.items() if not found.has_node}
        idle = {name: link for name, link in idle.items() if name in self.answering}
        if idle:
            await self._probe_again(idle)
            self._judge(self.emit)

    async def _probe_again(self, hosts: Mapping[str, Transport]) -> None:
        """Probe these hosts, and keep the last results of the others."""
        fresh = await probe_fleet(self.inventory, hosts, self.emit)
        self.probed = tuple({entry.host: entry for entry in (*self.probed, *fresh)}.values())

    async def _survey_probed(self, names: Collection[str], emit: Emit | None = None) -> None:
        await self.survey({*names} & self.facts.keys())
        self._judge(emit or self.emit)

    def _judge(self, emit: Emit) -> None:
        judged = judge_fleet(self.inventory, self.facts, head_name(self.surveyed))
        for name, problems in judged.items():
            found = self.surveyed.get(name)
            if found is None or found.error is not None or found.runs_ray or found.restarts_ray:
                continue
            if not problems and found.node_state is not None:
                continue  # it is fit, but its Ray has ended, which was reported
            state = HostState.UNFIT if problems else HostState.READY
            detail, hint = (problems[0].cause, problems[0].hint) if problems else ("", "")
            emit(events.HostChanged(host=name, state=state, detail=detail, hint=hint))

    async def survey(self, names: set[str] | None = None) -> None:
        """Survey the hosts (all, or those named) for a node of ours, and watch those that answer."""
        asked = {name: link for name, link in self.transports.items() if names is None or name in names}
        self.surveyed = await survey(self.cluster, asked)
        now = time.time()
        for name, found in self.surveyed.items():
            if found.node is not None and found.node_state is not None:
                self.emit(events.HostChanged(time=now, host=name, state=found.node_state, detail=found.cause))
            elif found.error is not None:
                if isinstance(found.error, HostKeyUnknown):
                    key = found.error
                    self.emit(
                        events.HostKeyOffered(time=now, host=name, fingerprint=key.fingerprint, endpoint=key.endpoint)
                    )
                self.emit(changed_by(found.error, name))
            elif names is None:
                self.emit(events.HostChanged(time=now, host=name, state=HostState.IDLE))
            if found.error is None and not found.replaced:  # otherwise its report is about the former cluster's Ray
                self._watch(name)
        if self.members or any(found.restarts_ray for found in self.surveyed.values()):
            whole = len(self.members) == len(self.inventory.hosts)
            state = ClusterState.UP if whole else ClusterState.DEGRADED
            if any(found.node_state is HostState.STARTING for found in self.surveyed.values()):
                state = ClusterState.STARTING
        elif any(found.error is None for found in self.surveyed.values()):
            state = ClusterState.DOWN
        else:
            return  # no host answered
        epoch = newest_epoch(self.surveyed)
        self.emit(events.ClusterChanged(time=now, state=state, head=head_name(self.surveyed), epoch=epoch))

    def failed(self, error: HostError) -> None:
        """Mark a host that answered before, but failed at a later question, as one that does not answer."""
        self.surveyed[error.host] = replace(self.surveyed[error.host], error=error)
        self.emit(changed_by(error, error.host))

    def alone(self, command: str, hosts: Collection[str] | None = None) -> AbstractAsyncContextManager[None]:
        """Lock these hosts (None: all) against other commands; reports the command for which this one has to wait."""

        def waiting(text: str) -> None:
            self.emit(events.Notice(level=events.Level.INFO, text=text))

        asked = {name: link for name, link in self.transports.items() if hosts is None or name in hosts}
        return alone(self.inventory, asked, command, waiting)

    def warn_of_others(self) -> None:
        """Say which clusters of other names have these machines, too: one that was renamed looks as if it were down."""
        for cluster, hosts in self.ledger.of_others(self.inventory.hosts).items():
            text = f"{cluster}, another cluster of this computer, is not taken down on {', '.join(hosts)}"
            text += f" -> `hetero-tui down` does it with `name: {cluster}` in the inventory"
            self.emit(events.Notice(level=events.Level.WARNING, text=text))

    def left_behind(self) -> tuple[str, ...]:
        """Where something of ours may be that the inventory no longer has, and what takes it away."""
        machines = {place_of(host)[1:] for host in self.inventory.hosts}
        said = []
        for ledger, command in ((self.ledger, "hetero-tui down"), (self.environments, "hetero-tui down --purge")):
            for host in (entry.host for entry in ledger.former()):
                if place_of(host)[1:] not in machines:  # otherwise it has another name now
                    what = f"something of ours may still be on {_label(host)}, which the inventory no longer has"
                    said.append(f"{what} -> `{command}` takes it away")
        return tuple(said)

    def refuse_name_of_another(self) -> None:
        """Raise ClusterError if another inventory's cluster that is up has this name."""
        entry = self.ledger.of_another()
        if entry is not None:
            cause = f"the cluster {self.cluster} of {entry.inventory} is not taken down (on {entry.host.name})"
            down = f"`hetero-tui --inventory {shlex.quote(entry.inventory)} down`"
            hint = f"give this inventory's cluster a name of its own (`cluster: {{name: ...}}`), or run {down} first"
            raise ClusterError(cause, step="cluster name", hint=hint)

    # --- Starting and stopping ---------------------------------------------------------------------------------------

    async def check(self) -> CheckReport:
        """Check the hosts, from the last probe; see :mod:`hetero_tui.fleet.check`."""
        head = head_name(self.surveyed)
        return await check(self.inventory, self.transports, self.probed, head, self.members)

    async def bootstrap(
        self, sources: Sources, extras: Sequence[str], anew: frozenset[str] | None = None
    ) -> BootstrapReport:
        """Install an environment on every host that lacks one, from the last probe; or only ``anew`` on these."""
        return await bootstrap(
            self.inventory,
            self.transports,
            self.probed,
            sources,
            extras,
            self.environments,
            self.emit,
            self.members,
            anew,
        )

    async def lacking(self, requirements: Sequence[str], of_head: Sequence[str] = ()) -> tuple[Lack, ...]:
        """The hosts that may train but do not meet a job's requirements, or, of the head, those ``of_head``."""
        head = head_name(self.surveyed)
        judged = judge_fleet(self.inventory, self.facts, head)
        fit = {name: self.facts[name] for name, problems in judged.items() if not problems}
        head = head or self.inventory.head
        return await lacking(self.cluster, self.transports, fit, requirements, of_head=of_head, head=head)

    async def bring_up(self, only: str | None = None) -> None:
        """Start the cluster on every fit host of the last probe, or let ``only`` this one join it.

        Raises:
            ClusterError: no cluster is possible.
        """
        self.refuse_name_of_another()
        if only is None:
            self.warn_of_others()
            for text in self.left_behind():
                self.emit(events.Notice(level=events.Level.WARNING, text=text))
        view = FleetView(self.inventory, self.transports, self.probed, self.surveyed)
        self.report = await bring_up(view, self.ledger, self.emit, only=only)
        joined = {name: self.transports[name] for name in self.report.joined}
        found = mark_replaced({**self.surveyed, **await survey(self.cluster, joined)})
        self.adopt(self.probed, found, self.report)

    def adopt(self, probed: tuple[Probed, ...], surveyed: Mapping[str, Surveyed], report: UpReport | None) -> None:
        """Take over the results of another command, and watch the members."""
        self.probed, self.surveyed, self.report = probed, dict(surveyed), report
        for name in self.members:
            self._watch(name)

    async def tear_down(self, purge: bool = False) -> TeardownReport:
        """Stop everything on every host of the inventory and of the ledgers, and verify that nothing is left.

        ``purge`` also removes environments.
        """
        await self.stop_watching()
        self.warn_of_others()
        hosts = {host: self.transports[host.name] for host in self.inventory.hosts}
        gone = self._open_former([*self.ledger.former(), *(self.environments.former() if purge else ())])
        try:
            return await tear_down(self.cluster, hosts, gone, self.ledger, self.environments, self.emit, purge=purge)
        finally:
            await _close_all(gone)

    @asynccontextmanager
    async def with_former(self) -> AsyncIterator[Mapping[str, Transport]]:
        """The ways to all hosts, with those that the inventory no longer has and something of ours may still run on."""
        gone = self._open_former(self.ledger.former())
        try:
            yield {**self.transports, **{transport.host: transport for transport in gone.values()}}
        finally:
            await _close_all(gone)

    def _open_former(self, entries: Iterable[Entry]) -> dict[Host, Transport]:
        """The way to each former host; its name there tells it from a host of the inventory with the same one."""
        found: dict[Host, Transport] = {}
        for host in (entry.host for entry in entries):
            named = host
            if self.inventory.host(host.name) is not None:
                named = host.model_copy(update={"name": _label(host)})
            accept = self._accept_new_host_keys
            found[host] = open_transport(named, self.inventory, accept_new_host_keys=accept)
        return found

    async def close(self) -> None:
        """Close the connections; processes on the hosts continue."""
        await self.stop_watching()
        await _close_all(self.transports)

    # --- Watching ----------------------------------------------------------------------------------------------------

    def _watch(self, name: str) -> None:
        known = self._watchers.get(name)
        if self._watches and (known is None or known.done()):
            host = self.inventory.host(name)
            pythons = agent.python_candidates(self.cluster, host) if host is not None else ()
            self._watchers[name] = asyncio.create_task(
                telemetry.watch(self.cluster, self.transports[name], self.emit, pythons), name=f"watch {name}"
            )

    def watch_answering(self) -> None:
        """Watch every host that answered last."""
        for name in self.answering:
            self._watch(name)

    async def stop_watching(self) -> None:
        """Stop watching all hosts."""
        tasks = list(self._watchers.values())
        self._watchers.clear()
        await cancel(*tasks)


def _label(host: Host) -> str:
    """A host with the way to it, for people."""
    target = "this computer" if host.connection == "local" else target_of(host.model_dump())
    return f"{host.name} ({target})"


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait for them up to a limit."""
    for task in tasks:
        task.cancel()
    await _settle(*tasks)


async def _close_all(transports: Mapping[Any, Transport]) -> None:
    await _settle(*(transport.close() for transport in transports.values()))


async def _settle(*work: Coroutine[Any, Any, None] | asyncio.Task[Any]) -> None:
    """Wait for all, with any outcome, up to a limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(deadlines.CLOSE):
            await asyncio.gather(*work, return_exceptions=True)
