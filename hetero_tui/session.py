"""The live session: one inventory, its connections, what is known, and the operations that change it.

Screens and commands are two faces of this: both call its methods and render its :attr:`Session.state`. Every change is
an event through :func:`hetero_tui.fold.apply`. Operations exclude each other; watching hosts and following a run go
on beside them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hetero_tui import deadlines, events
from hetero_tui.errors import HeteroTuiError, HostKeyUnknown, RunError, UsageError
from hetero_tui.events import ClusterState, HostState, Level, RunState
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import telemetry
from hetero_tui.fleet.bring_up import UpReport, bring_up
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.preflight import judge
from hetero_tui.fleet.probing import Probed, probe_fleet
from hetero_tui.fleet.survey import Surveyed, head_name, survey
from hetero_tui.fleet.teardown import tear_down
from hetero_tui.fold import apply
from hetero_tui.intents import TeardownPreview, TeardownReport
from hetero_tui.inventory import Inventory
from hetero_tui.runs import launch as launching
from hetero_tui.runs import resume as resuming
from hetero_tui.runs.follow import follow
from hetero_tui.runs.listing import FINAL_STATES, find_run, list_runs, stop_run
from hetero_tui.state import State, initial
from hetero_tui.transport import Transport, open_transport
from remote_agent import protocol

_WITH_RAY = (
    HostState.UP,
    HostState.TRAINING,
    HostState.SLOW,
    HostState.STARTING,
    HostState.RESTARTING,
    HostState.FAILED,
)


class Session:
    """One fleet, as long as somebody looks at it. Use as an async context manager, or call :meth:`close`."""

    def __init__(
        self,
        inventory: Inventory,
        path: Path,
        *,
        accept_new_host_keys: bool = False,
        ledger_folder: Path | None = None,
        log_errors: bool = True,
    ) -> None:
        """Nothing is connected yet.

        ``ledger_folder`` replaces the user's state folder (demo, tests). ``log_errors``: an operation's error becomes
        a line of the log as well as an exception; a command, which prints the exception, goes without.
        """
        self.inventory = inventory
        self.inventory_path = str(path)
        self.jobs: tuple[str, ...] = launching.READY_JOBS
        self.busy = ""
        self.probed: tuple[Probed, ...] = ()
        self.surveyed: dict[str, Surveyed] = {}
        self.up_report: UpReport | None = None
        self._accept_new_host_keys = accept_new_host_keys
        self._log_errors = log_errors
        self._ledger = Ledger(inventory.cluster, ledger_folder)
        self._transports: dict[str, Transport] = {
            host.name: open_transport(host, inventory, accept_new_host_keys=accept_new_host_keys)
            for host in inventory.hosts
        }
        self._state = initial(
            inventory.cluster, tuple((host.name, host.address or "this computer") for host in inventory.hosts)
        )
        self._listeners: list[Callable[[State], None]] = []
        self._operation = asyncio.Lock()
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._follower: asyncio.Task[None] | None = None
        self._run_host: str | None = None

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- What is known -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What is known now."""
        return self._state

    def subscribe(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Have ``listener`` called after each change; the answer ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def emit(self, event: events.Event) -> None:
        """Fold one event into the state and tell the listeners."""
        self._state = apply(self._state, event)
        for listener in tuple(self._listeners):
            listener(self._state)

    def notice(self, level: Level, text: str) -> None:
        """A line for the log."""
        self.emit(events.Notice(time=time.time(), level=level, text=text))

    # --- Operations --------------------------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Probe all hosts and ask what of ours is there; then watch, and follow a run that is under way."""
        async with self._operation:
            with self._working("probing"):
                await self._look()
                await self._attach_to_live_run()

    async def up(self) -> None:
        """Start the cluster on every fit host; what runs is left alone."""
        async with self._operation:
            with self._working("starting"):
                await self._look()
                await self._up()

    async def train(self, job: str, settings: Mapping[str, str]) -> str:
        """Start a run, bringing the cluster up first where it is down, and follow it."""
        run = await self.launch(launching.parse_job(job), settings)
        self._follow(run)
        return run

    async def launch(self, job: launching.Job, settings: Mapping[str, str]) -> str:
        """Start a run, bringing the cluster up first where it is down; the answer is its name."""
        async with self._operation:
            with self._working("starting"):
                live = self._state.run
                if live is not None and not live.state.final:
                    raise UsageError(f"{live.run} is under way", step="train", hint="stop it first")
                await self._look()
                if head_name(self.surveyed) is None:
                    await self._up()
                run, head = await launching.launch(
                    self.inventory, self._transports, self.surveyed, self._facts(), job, settings
                )
                self._run_host = head
                self.emit(events.RunChanged(time=time.time(), run=run, job=job.reference, state=RunState.STARTING))
                return run

    async def resume_run(self, run: str | None = None) -> str:
        """Let a run (None: the newest) go on from its newest checkpoint; a cluster that is down is brought up first.

        Returns:
            Its name.

        Raises:
            RunError: it can't go on.
        """
        async with self._operation:
            with self._working("resuming"):
                live = self._state.run
                if live is not None and not live.state.final:
                    raise UsageError(f"{live.run} is under way", step="resume run", hint="stop it first")
                await self._look()
                if head_name(self.surveyed) is None:
                    await self._up()
                self._run_host, summary = await resuming.resume(
                    self.inventory, self._transports, self.surveyed, self._facts(), run
                )
                now = time.time()
                self.emit(events.RunChanged(time=now, run=summary.id, job=summary.job, state=RunState.STARTING))
                return summary.id

    async def events_of(self, run: str | None) -> AsyncIterator[tuple[str, protocol.Event]]:
        """(line as written, event) of a run from seq 1 to its end; None is the newest run. Each is folded as well.

        Raises:
            RunError: there is no such run, or it ended without a last event.
        """
        if self._run_host is None or self._state.run is None or self._state.run.run != run:
            host, summary = await find_run(self.inventory.cluster, self._transports, run)
            run, self._run_host = summary.id, host
            self.emit(events.RunChanged(time=time.time(), run=run, job=summary.job, state=RunState(summary.state)))
        assert run is not None
        broken = False

        def lost(cause: str) -> None:
            nonlocal broken
            if not broken:
                self.notice(Level.WARNING, f"lost sight of {run}: {cause}; it goes on, and so do we")
            broken = True

        try:
            async for line, event in follow(self._transports[self._run_host], self.inventory.cluster, run, lost):
                if broken:
                    broken = False
                    self.notice(Level.GOOD, f"{run} is in sight again")
                self.emit(events.RunProgressed(run=run, event=event))
                yield line, event
        except RunError as error:
            self.emit(events.RunChanged(time=time.time(), run=run, job="", state=RunState.LOST, detail=error.cause))
            raise

    async def stop_run(self, run: str | None = None) -> None:
        """Stop a run (None: the one on the screen, else the newest) after its step, with a checkpoint."""
        with self._working("stopping the run"):
            current = self._state.run
            wanted = run if run is not None else (current.run if current is not None else None)
            host, summary = await find_run(self.inventory.cluster, self._transports, wanted)
            if summary.state in FINAL_STATES:
                raise RunError(f"{summary.id} is {summary.state} already", step="stop run")
            if current is not None and current.run == summary.id:
                self.emit(events.RunChanged(time=time.time(), run=summary.id, job=summary.job, state=RunState.STOPPING))
            await stop_run(self.inventory.cluster, self._transports[host], summary.id)

    async def status(self) -> tuple[tuple[str, protocol.RunSummary], ...]:
        """Ask what of ours is on every host, without probing; the answer is the runs, oldest first."""
        async with self._operation:
            with self._working("asking"):
                await self._survey()
                return await list_runs(self.inventory.cluster, self._answering())

    def accept_host_key(self, host: str) -> None:
        """Trust the key that ``host`` offered; it is probed again by the next :meth:`probe`."""
        if not self._transports[host].accept_offered_key():
            raise UsageError(f"{host} has no key to accept", step="host key")

    def teardown_preview(self) -> TeardownPreview:
        """What :meth:`down` would do now."""
        run = self._state.run
        live = ""
        if run is not None and not run.state.final:
            saved = f"last checkpoint: step {run.checkpoint_step:,}" if run.checkpoint else "no checkpoint yet"
            live = f"{run.run} at step {run.step:,} ({saved})"
        touched = {entry.host.name for entry in self._ledger.entries()}
        with_ray = [host.name for host in self._state.hosts if host.state in _WITH_RAY]
        stops = (f"Ray on {', '.join(with_ray)}",) if with_ray else ()
        away = tuple(
            host.name for host in self._state.hosts if host.state is HostState.UNREACHABLE and host.name in touched
        )
        return TeardownPreview(cluster=self.inventory.cluster, running=live, stops=stops, unreachable=away)

    async def down(self) -> TeardownReport:
        """Stop everything on every host of the inventory and of the ledger, and prove that nothing is left."""
        async with self._operation:
            with self._working("stopping"):
                await self._stop_watching()
                gone = [entry.host for entry in self._ledger.entries() if self.inventory.host(entry.host.name) is None]
                former: dict[str, Transport] = {
                    host.name: open_transport(host, self.inventory, accept_new_host_keys=self._accept_new_host_keys)
                    for host in gone
                }
                try:
                    return await tear_down(self.inventory.cluster, self._transports | former, self._ledger, self.emit)
                finally:
                    await _close_all(former)

    async def close(self) -> None:
        """Detach: connections close, whatever runs on the hosts goes on."""
        await self._stop_watching()
        await _close_all(self._transports)

    # --- Inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _working(self, word: str) -> Iterator[None]:
        """Say what is under way; an error becomes a line in the log on its way to the caller."""
        self.busy = word
        try:
            yield
        except HeteroTuiError as error:
            if self._log_errors:
                self.notice(Level.BAD, str(error))
            raise
        finally:
            self.busy = ""
            for listener in tuple(self._listeners):
                listener(self._state)

    def _facts(self) -> dict[str, HostFacts]:
        return {entry.host: entry.facts for entry in self.probed if entry.facts is not None}

    def _answering(self) -> dict[str, Transport]:
        """The hosts that answered last: who was silent is not waited for a second time."""
        return {name: self._transports[name] for name, found in self.surveyed.items() if found.error is None}

    async def _look(self) -> None:
        """Probe every host, then ask those that answered what of ours is there; hosts' states follow."""
        self.probed = await probe_fleet(self.inventory, self._transports, self.emit)
        await self._survey({entry.host for entry in self.probed if entry.facts is not None})
        for name, facts in self._facts().items():
            host = self.inventory.host(name)
            found = self.surveyed.get(name)
            if host is None or (found is not None and (found.runs_ray or found.restarts_ray)):
                continue
            problems = judge(host, facts)
            if not problems and found is not None and found.node_state is not None:
                continue  # fit, but its Ray has ended, which was said
            state = HostState.UNFIT if problems else HostState.READY
            detail = problems[0].cause if problems else ""
            self.emit(events.HostChanged(time=time.time(), host=name, state=state, detail=detail))

    async def _survey(self, names: set[str] | None = None) -> None:
        """Ask the hosts (all, or those named) whether a node of ours runs there, and watch those that have an agent."""
        asked = {name: link for name, link in self._transports.items() if names is None or name in names}
        self.surveyed = await survey(self.inventory.cluster, asked)
        now = time.time()
        for name, found in self.surveyed.items():
            if found.node is not None and found.node_state is not None:
                self.emit(events.HostChanged(time=now, host=name, state=found.node_state, detail=found.node.cause))
            elif found.error is not None:
                if isinstance(found.error, HostKeyUnknown):
                    self.emit(events.HostKeyOffered(time=now, host=name, fingerprint=found.error.fingerprint))
                self.emit(events.HostLost(time=now, host=name, cause=found.error.cause))
            elif names is None:
                self.emit(events.HostChanged(time=now, host=name, state=HostState.READY))
            if found.node is not None:
                self._watch(name)
        running = [name for name, found in self.surveyed.items() if found.runs_ray]
        if running or any(found.restarts_ray for found in self.surveyed.values()):
            whole = len(running) == len(self.inventory.hosts)
            state = ClusterState.UP if whole else ClusterState.DEGRADED
        else:
            state = ClusterState.DOWN
        self.emit(events.ClusterChanged(time=now, state=state, head=head_name(self.surveyed)))

    async def _up(self) -> None:
        report = await bring_up(self.inventory, self._transports, self.probed, self.surveyed, self._ledger, self.emit)
        self.up_report = report
        joined = {name: self._transports[name] for name in report.joined}
        self.surveyed |= await survey(self.inventory.cluster, joined)
        for name in report.joined:
            self._watch(name)

    def _watch(self, name: str) -> None:
        known = self._watchers.get(name)
        if known is None or known.done():
            self._watchers[name] = asyncio.create_task(
                telemetry.watch(self.inventory.cluster, self._transports[name], self.emit), name=f"watch {name}"
            )

    async def _attach_to_live_run(self) -> None:
        known = self._state.run
        if known is not None and not known.state.final:
            return
        runs = await list_runs(self.inventory.cluster, self._answering())
        live = [(host, run) for host, run in runs if run.state not in FINAL_STATES]
        if live:
            self._run_host, summary = live[-1]
            self.emit(
                events.RunChanged(
                    time=time.time(), run=summary.id, job=summary.job, state=RunState(summary.state), detail="attached"
                )
            )
            self._follow(summary.id)

    def _follow(self, run: str) -> None:
        async def consume() -> None:
            with suppress(HeteroTuiError):  # it is in the log and in the run's state
                async for _ in self.events_of(run):
                    pass

        if self._follower is not None:
            self._follower.cancel()
        self._follower = asyncio.create_task(consume(), name=f"follow {run}")

    async def _stop_watching(self) -> None:
        tasks: list[asyncio.Task[None]] = [*self._watchers.values()]
        if self._follower is not None:
            tasks.append(self._follower)
        self._watchers.clear()
        self._follower = None
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
