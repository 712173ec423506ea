"""The live session: one inventory, its connections, what is known, and the operations that change it.

Screens and commands are two faces of this: both call its methods and render its :attr:`Session.state`. Every change is
an event through :func:`hetero_tui.fold.apply`. Operations exclude each other; watching hosts and following a run go
on beside them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

from hetero_tui import deadlines, events
from hetero_tui.errors import CommandFailed, HeteroTuiError, HostKeyUnknown, RunError, UsageError
from hetero_tui.events import ClusterState, HostState, Level, RunState
from hetero_tui.facts import HostFacts
from hetero_tui.fleet import telemetry
from hetero_tui.fleet.bring_up import UpReport, bring_up
from hetero_tui.fleet.ledger import Ledger
from hetero_tui.fleet.preflight import judge
from hetero_tui.fleet.probing import Probed, probe_fleet
from hetero_tui.fleet.survey import Surveyed, head_name, mark_replaced, running_head, survey
from hetero_tui.fleet.teardown import tear_down
from hetero_tui.fold import apply
from hetero_tui.intents import TeardownPreview, TeardownReport
from hetero_tui.inventory import Inventory
from hetero_tui.runs import launch as launching
from hetero_tui.runs import membership
from hetero_tui.runs import resume as resuming
from hetero_tui.runs.attending import attend
from hetero_tui.runs.failover import form_anew, refuse_if_head_lives, taken_over
from hetero_tui.runs.listing import FINAL_STATES, find_run, list_runs, live_run, stop_run
from hetero_tui.runs.seen import Seen
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
                before = {name for name, found in self.surveyed.items() if found.runs_ray}
                await self._up()
                await self._add_to_run(before)

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
                    _, summary = await find_run(self.inventory.cluster, self._answering(), run)
                    resuming.refuse_if_done(summary)
                    if running_head(self.surveyed) is not None:
                        await refuse_if_head_lives(self.inventory.cluster, self._answering())
                    run = summary.id
                    await self._form_anew(run, self._answering())
                return await self._resume(run)

    async def resume(self) -> str:
        """Let the run on the screen, or else the newest, go on, and follow it; the answer is its name."""
        shown = self._state.run
        run = await self.resume_run(shown.run if shown is not None else None)
        self._follow(run)
        return run

    async def fail_over(self, run: str, head: str, cause: str, seen: Seen) -> str:
        """See :class:`hetero_tui.runs.attending.Recovery`."""
        self.emit(events.HostLost(time=time.time(), host=head, cause=cause))
        self.notice(Level.BAD, f"the head is lost; {run} goes on on another host as soon as there is a new one")
        others = {name: link for name, link in self._transports.items() if name != head}
        # Who started the cluster forms it anew; a laptop that only looks on gives that one time for it.
        patience = 0.0 if self._ledger.entries() else deadlines.STEP_ASIDE
        there = await taken_over(self.inventory.cluster, others, run, patience)
        if there is None:
            async with self._operation:
                with self._working("failing over"):
                    await self._form_anew(run, others)
                    there = await self._resume_unless_another_did(run, cause, seen)
        self._run_host = there
        self._take_back(head)
        return there

    async def restart(self, run: str, cause: str) -> str:
        """See :class:`hetero_tui.runs.attending.Recovery`."""
        self.notice(Level.BAD, cause)
        async with self._operation:
            with self._working("resuming"):
                if self._facts():
                    await self._survey()  # what the machines are did not change
                else:
                    await self._look()
                self._run_host = await self._resume_unless_another_did(run)
                return self._run_host

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
        cluster, head = self.inventory.cluster, self._run_host
        try:
            async with aclosing(attend(cluster, self._transports, run, head, self.emit, self)) as coming:
                async for line, event in coming:
                    yield line, event
        except HeteroTuiError as error:
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

    async def drain(self, host: str) -> str:
        """Have ``host`` leave the run that is under way, after its step and with nothing lost; the run's name.

        Raises:
            UsageError: the inventory has no such host.
            RunError: no run is under way.
        """
        if self.inventory.host(host) is None:
            known = ", ".join(entry.name for entry in self.inventory.hosts)
            raise UsageError(f"no host {host!r} in the inventory", step="drain", hint=f"hosts: {known}")
        with self._working("draining"):
            run = await membership.drain(self.inventory.cluster, self._transports, host)
            self.notice(Level.INFO, f"{host} leaves {run} after its step")
            return run

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
                self.emit(events.HostChanged(time=now, host=name, state=found.node_state, detail=found.cause))
            elif found.error is not None:
                if isinstance(found.error, HostKeyUnknown):
                    self.emit(events.HostKeyOffered(time=now, host=name, fingerprint=found.error.fingerprint))
                self.emit(events.HostLost(time=now, host=name, cause=found.error.cause))
            elif names is None:
                self.emit(events.HostChanged(time=now, host=name, state=HostState.READY))
            if found.node is not None and not found.replaced:  # what it says of its Ray would be of the former cluster
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
        self.surveyed = mark_replaced({**self.surveyed, **await survey(self.inventory.cluster, joined)})
        for name in report.joined:
            self._watch(name)

    async def _form_anew(self, run: str, transports: Mapping[str, Transport]) -> None:
        """A cluster of those hosts, with a head that can go on with ``run``; hosts' states follow."""
        formed = await form_anew(self.inventory, transports, self._ledger, self.emit, run)
        self.probed, self.surveyed, self.up_report = formed.probed, dict(formed.surveyed), formed.report
        for name, found in formed.surveyed.items():
            if found.runs_ray:
                self._watch(name)

    async def _resume(self, run: str | None, cause: str = "", seen: Seen | None = None) -> str:
        self._run_host, summary = await resuming.resume(
            self.inventory, self._answering(), self.surveyed, self._facts(), run, cause=cause, seen=seen
        )
        now = time.time()
        self.emit(events.RunChanged(time=now, run=summary.id, job=summary.job, state=RunState.STARTING))
        return summary.id

    async def _resume_unless_another_did(self, run: str, cause: str = "", seen: Seen | None = None) -> str:
        """Let a run that is followed go on; the host where it does. Another laptop may do the same at this moment."""
        try:
            await self._resume(run, cause, seen)
        except (RunError, CommandFailed):
            found = await live_run(self.inventory.cluster, self._answering())
            if found is None or found[1].id != run:
                raise
            return found[0]
        assert self._run_host is not None
        return self._run_host

    def _take_back(self, host: str) -> None:
        """Once a head that was lost can be reached again, take it into the cluster that took its place."""

        async def wait() -> None:
            for pause in deadlines.reconnect_pauses():
                await asyncio.sleep(pause)
                with suppress(HeteroTuiError):
                    await self._transports[host].connect()
                    await self.up()
                    return

        self._watchers[f"take back {host}"] = asyncio.create_task(wait(), name=f"take back {host}")

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
        live = await live_run(self.inventory.cluster, self._answering())
        if live is not None:
            self._run_host, summary = live
            self.emit(
                events.RunChanged(
                    time=time.time(), run=summary.id, job=summary.job, state=RunState(summary.state), detail="attached"
                )
            )
            self._follow(summary.id)

    async def _add_to_run(self, before: set[str]) -> None:
        """Offer the devices of hosts that joined the cluster just now to the run that is under way, if there is one."""
        new = {name: found for name, found in self.surveyed.items() if found.runs_ray and name not in before}
        if not before or not new:
            return
        run = await membership.offer(self.inventory, self._answering(), self._facts(), new)
        if run is not None:
            self.notice(Level.INFO, f"{', '.join(sorted(new))}: to take part in {run}")

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
