"""The inventory's hosts as they are now: connections, what the last look found on each, and who watches it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hetero_tui import deadlines, events
from hetero_tui.errors import HostError, HostKeyUnknown
from hetero_tui.events import ClusterState, Emit, HostState
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import telemetry
from hetero_tui.fleet.bring_up import UpReport, bring_up
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.preflight import judge_fleet
from hetero_tui.fleet.probing import Probed, probe_fleet, state_after
from hetero_tui.fleet.survey import Surveyed, head_name, mark_replaced, survey
from hetero_tui.fleet.teardown import tear_down
from hetero_tui.intents import TeardownReport
from hetero_tui.inventory import Inventory
from hetero_tui.transport import Transport, open_transport


class LiveFleet:
    """What is known of the hosts; each change of it is emitted.

    Attributes:
        transports: to every host of the inventory, connected or not.
        probed: what the machines are; empty before the first look.
        surveyed: what of ours runs on them.
        report: of the last bring-up; None: there was none, or another laptop did it.
    """

    def __init__(
        self, inventory: Inventory, emit: Emit, *, accept_new_host_keys: bool = False, ledger_folder: Path | None = None
    ) -> None:
        """Nothing is connected yet; ``ledger_folder`` replaces the user's state folder (demo, tests)."""
        self.inventory = inventory
        self.emit = emit
        self.ledger = Ledger(inventory.cluster, ledger_folder)
        self.transports: dict[str, Transport] = {
            host.name: open_transport(host, inventory, accept_new_host_keys=accept_new_host_keys)
            for host in inventory.hosts
        }
        self.probed: tuple[Probed, ...] = ()
        self.surveyed: dict[str, Surveyed] = {}
        self.report: UpReport | None = None
        self._accept_new_host_keys = accept_new_host_keys
        self._watchers: dict[str, asyncio.Task[None]] = {}

    # --- What was found ----------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.inventory.cluster

    @property
    def facts(self) -> dict[str, HostFacts]:
        """About the machines that were probed well."""
        return {entry.host: entry.facts for entry in self.probed if entry.facts is not None}

    @property
    def answering(self) -> dict[str, Transport]:
        """The hosts that answered last: who was silent is not waited for a second time."""
        return {name: self.transports[name] for name, found in self.surveyed.items() if found.error is None}

    @property
    def members(self) -> frozenset[str]:
        """The hosts that were in the cluster at the last look."""
        return frozenset(name for name, found in self.surveyed.items() if found.runs_ray)

    # --- Looking -----------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Probe every host, then ask those that answered what of ours is there; hosts' states follow."""
        self.probed = await probe_fleet(self.inventory, self.transports, self.emit)
        await self._survey_probed(self.transports)

    async def look_at(self, name: str) -> None:
        """Probe this host alone, then ask it and all that answered last what of ours is there; hosts' states follow."""
        answering = {name, *self.answering}
        fresh = await probe_fleet(self.inventory, {name: self.transports[name]}, self.emit)
        self.probed = tuple({entry.host: entry for entry in (*self.probed, *fresh)}.values())
        await self._survey_probed(answering)

    async def _survey_probed(self, names: Collection[str]) -> None:
        await self.survey({*names} & self.facts.keys())
        judged = judge_fleet(self.inventory, self.facts, head_name(self.surveyed))
        for name, problems in judged.items():
            found = self.surveyed.get(name)
            if found is None or found.error is not None or found.runs_ray or found.restarts_ray:
                continue
            if not problems and found.node_state is not None:
                continue  # fit, but its Ray has ended, which was said
            state = HostState.UNFIT if problems else HostState.READY
            detail = problems[0].cause if problems else ""
            self.emit(events.HostChanged(time=time.time(), host=name, state=state, detail=detail))

    async def survey(self, names: set[str] | None = None) -> None:
        """Ask the hosts (all, or those named) whether a node of ours runs there, and watch those that have an agent."""
        asked = {name: link for name, link in self.transports.items() if names is None or name in names}
        self.surveyed = await survey(self.cluster, asked)
        now = time.time()
        for name, found in self.surveyed.items():
            if found.node is not None and found.node_state is not None:
                self.emit(events.HostChanged(time=now, host=name, state=found.node_state, detail=found.cause))
            elif found.error is not None:
                if isinstance(found.error, HostKeyUnknown):
                    self.emit(events.HostKeyOffered(time=now, host=name, fingerprint=found.error.fingerprint))
                self.emit(events.HostLost(time=now, host=name, cause=found.error.cause))
            elif names is None:
                self.emit(events.HostChanged(time=now, host=name, state=HostState.READY))
            if found.node is not None and not found.replaced:  # what it says of its Ray would be of the former cluster
                self._watch(name)
        if self.members or any(found.restarts_ray for found in self.surveyed.values()):
            whole = len(self.members) == len(self.inventory.hosts)
            state = ClusterState.UP if whole else ClusterState.DEGRADED
        else:
            state = ClusterState.DOWN
        self.emit(events.ClusterChanged(time=now, state=state, head=head_name(self.surveyed)))

    def failed(self, error: HostError) -> None:
        """A host that answered before failed at a later question: it counts as one that does not answer."""
        self.surveyed[error.host] = replace(self.surveyed[error.host], error=error)
        self.emit(events.HostChanged(time=time.time(), host=error.host, state=state_after(error), detail=error.cause))

    def alone(self) -> AbstractAsyncContextManager[None]:
        """One command of this laptop at a time forms the cluster; it is said where this one has to wait."""
        text = "another command of this laptop is starting the cluster; this one waits for it"
        notice = events.Notice(time=time.time(), level=events.Level.INFO, text=text)
        return self.ledger.alone(lambda: self.emit(notice))

    # --- Starting and stopping ---------------------------------------------------------------------------------------

    async def bring_up(self, only: str | None = None) -> None:
        """Start the cluster on every host that the last look found fit; or have ``only`` this one join it.

        Raises:
            ClusterError: no cluster is possible.
        """
        self.report = await bring_up(
            self.inventory, self.transports, self.probed, self.surveyed, self.ledger, self.emit, only=only
        )
        joined = {name: self.transports[name] for name in self.report.joined}
        found = mark_replaced({**self.surveyed, **await survey(self.cluster, joined)})
        self.adopt(self.probed, found, self.report)

    def adopt(self, probed: tuple[Probed, ...], surveyed: Mapping[str, Surveyed], report: UpReport | None) -> None:
        """Take over what another command found or made, and watch the members."""
        self.probed, self.surveyed, self.report = probed, dict(surveyed), report
        for name in self.members:
            self._watch(name)

    async def tear_down(self) -> TeardownReport:
        """Stop everything on every host of the inventory and of the ledger, and prove that nothing is left."""
        await self.stop_watching()
        gone = [entry.host for entry in self.ledger.entries() if self.inventory.host(entry.host.name) is None]
        former: dict[str, Transport] = {
            host.name: open_transport(host, self.inventory, accept_new_host_keys=self._accept_new_host_keys)
            for host in gone
        }
        try:
            return await tear_down(self.cluster, self.transports | former, self.ledger, self.emit)
        finally:
            await _close_all(former)

    async def close(self) -> None:
        """Close the connections; whatever runs on the hosts goes on."""
        await self.stop_watching()
        await _close_all(self.transports)

    # --- Watching ----------------------------------------------------------------------------------------------------

    def _watch(self, name: str) -> None:
        known = self._watchers.get(name)
        if known is None or known.done():
            self._watchers[name] = asyncio.create_task(
                telemetry.watch(self.cluster, self.transports[name], self.emit), name=f"watch {name}"
            )

    async def stop_watching(self) -> None:
        """No host is watched from now on."""
        tasks = list(self._watchers.values())
        self._watchers.clear()
        await cancel(*tasks)


async def cancel(*tasks: asyncio.Task[None]) -> None:
    """End tasks, but do not wait for it for ever."""
    for task in tasks:
        task.cancel()
    await _settle(*tasks)


async def _close_all(transports: Mapping[str, Transport]) -> None:
    await _settle(*(transport.close() for transport in transports.values()))


async def _settle(*work: Coroutine[Any, Any, None] | asyncio.Task[None]) -> None:
    """Wait for all, whatever becomes of each, but not for ever."""
    with suppress(TimeoutError):
        async with asyncio.timeout(deadlines.CLOSE):
            await asyncio.gather(*work, return_exceptions=True)
