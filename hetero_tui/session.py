"""The live session: one inventory, its connections, what is known, and the operations that change it.

Screens and commands are two faces of this: both call its methods and render its :attr:`Session.state`. Every change is
an event through :func:`hetero_tui.fold.apply`. Operations exclude each other; watching hosts and following a run go
on beside them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from hetero_tui import events
from hetero_tui.errors import HeteroTuiError, HostError, OrderError, RunError, UsageError
from hetero_tui.events import HostState, Level, RunState
from hetero_tui.fleet.bring_up import UpReport
from hetero_tui.fleet.live import LiveFleet, cancel
from hetero_tui.fleet.probing import Probed
from hetero_tui.fleet.survey import Surveyed, head_name
from hetero_tui.fold import apply
from hetero_tui.intents import TeardownPreview, TeardownReport
from hetero_tui.inventory import Inventory
from hetero_tui.runs import membership
from hetero_tui.runs.attending import attend
from hetero_tui.runs.launch import launch
from hetero_tui.runs.listing import FINAL_STATES, find_among, find_run, list_runs, live_run, stop_run
from hetero_tui.runs.logs import Logged, logs_of
from hetero_tui.runs.order import READY_JOBS, Order, archive_of, read_order
from hetero_tui.runs.recovery import FleetRecovery
from hetero_tui.state import State, initial
from hetero_tui.text import HostText
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
    """One fleet, as long as it is looked at. Use as an async context manager, or call :meth:`close`."""

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
        self.jobs: tuple[str, ...] = READY_JOBS
        self._under_way: list[str] = []
        self._log_errors = log_errors
        self._state = initial(
            inventory.cluster, tuple((host.name, host.address or "this computer") for host in inventory.hosts)
        )
        self._listeners: list[Callable[[State], None]] = []
        self._operation = asyncio.Lock()
        self._fleet = LiveFleet(
            inventory, self.emit, accept_new_host_keys=accept_new_host_keys, ledger_folder=ledger_folder
        )
        self._recovery = FleetRecovery(self._fleet, self._exclusively, self._run_is_on, self._take_in)
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

    @property
    def busy(self) -> str:
        """What is under way, in a word, until all of it has ended: first the operation that excludes the others."""
        return self._under_way[0] if self._under_way else ""

    @property
    def probed(self) -> tuple[Probed, ...]:
        """What the machines are, as last probed."""
        return self._fleet.probed

    @property
    def surveyed(self) -> Mapping[str, Surveyed]:
        """What of ours is on each host, as last asked."""
        return self._fleet.surveyed

    @property
    def up_report(self) -> UpReport | None:
        """How the last bring-up went; None: there was none."""
        return self._fleet.report

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
        async with self._exclusively("probing"):
            await self._fleet.look()
            await self._attach_to_live_run()

    async def up(self) -> None:
        """Start the cluster on every fit host; what runs is left alone, and a run takes in who is new."""
        async with self._exclusively("starting"), self._fleet.alone():
            await self._fleet.look()
            await self._join()

    async def _take_in(self, host: str) -> None:
        """Have one host that is back join the cluster and its run: the others train, and are not probed again."""
        fleet = self._fleet
        async with self._exclusively("starting"):
            is_known = bool(fleet.facts) and head_name(fleet.surveyed) is not None
            await (fleet.look_at(host) if is_known else fleet.look())
            await self._join(host)

    def mistakes_in(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> tuple[str, ...]:
        """What is wrong with an order for :meth:`train`, as far as it shows before anything starts."""
        try:
            read_order(job, settings, paths)
        except OrderError as error:
            return error.mistakes
        return ()

    async def train(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> str:
        """Start a run, bringing the cluster up first where it is down, and follow it."""
        run = await self.launch(read_order(job, settings, paths))
        self._follow(run)
        return run

    async def launch(self, order: Order) -> str:
        """Start a run, bringing the cluster up first where it is down; the answer is its name."""
        async with self._exclusively("starting"), self._fleet.alone():
            self._refuse_beside_live_run("train")
            archive = await archive_of(order, self.notice)
            fleet = self._fleet
            await fleet.look()
            if head_name(fleet.surveyed) is None:
                await fleet.bring_up()
            run, head = await launch(self.inventory, fleet.transports, fleet.surveyed, fleet.facts, order, archive)
            self._run_is_on(head)
            self.emit(events.RunChanged(time=time.time(), run=run, job=order.job.reference, state=RunState.STARTING))
            return run

    async def resume_run(self, run: str | None = None) -> str:
        """Let a run (None: the newest) go on from its newest checkpoint; a cluster that is down is brought up first.

        Returns:
            Its name.

        Raises:
            RunError: it can't go on.
        """
        async with self._exclusively("resuming"), self._fleet.alone():
            self._refuse_beside_live_run("resume run")
            return await self._recovery.by_hand(run)

    async def resume(self) -> str:
        """Let the run on the screen, or else the newest, go on, and follow it; the answer is its name."""
        shown = self._state.run
        run = await self.resume_run(shown.run if shown is not None else None)
        self._follow(run)
        return run

    async def events_of(self, run: str | None) -> AsyncIterator[tuple[HostText, protocol.Event]]:
        """(line as written, event) of a run from seq 1 to its end; None is the newest run. Each is folded as well.

        Raises:
            RunError: there is no such run, or it ended without a last event.
        """
        if self._run_host is None or self._state.run is None or self._state.run.run != run:
            host, summary = await find_run(self.inventory.cluster, self._fleet.transports, run)
            run, self._run_host = summary.id, host
            self.emit(events.RunChanged(time=time.time(), run=run, job=summary.job, state=RunState(summary.state)))
        assert run is not None
        fleet, head = self._fleet, self._run_host
        try:
            async with aclosing(
                attend(fleet.cluster, fleet.transports, run, head, self.emit, self._recovery)
            ) as coming:
                async for line, event in coming:
                    yield line, event
        except HeteroTuiError as error:
            self.emit(events.RunChanged(time=time.time(), run=run, job="", state=RunState.LOST, detail=error.cause))
            raise

    async def logs_of(
        self, run: str | None, host: str = "", *, follow: bool, failed: Callable[[HostError], None]
    ) -> AsyncIterator[Logged]:
        """What the processes of a run (None: the newest) logged and printed on all hosts, or on ``host``, by time.

        Args:
            run: which.
            host: only this one's; empty: all hosts'.
            follow: go on until the run ends.
            failed: is told of each of those hosts that can't be asked.

        Raises:
            UsageError: the inventory has no such host.
            RunError: there is no such run.
        """
        if host:
            self._refuse_unknown(host, step="logs")
        runs = await self.status()
        for found in self.surveyed.values():
            if found.error is not None and host in ("", found.host):
                failed(found.error)
        head, summary = find_among(runs, run)
        wanted = {host, *([head] if follow else [])} if host else self._fleet.answering.keys()
        asked = {name: link for name, link in self._fleet.answering.items() if name in wanted}
        coming = logs_of(asked, self.inventory.cluster, summary, head, follow=follow, failed=failed)
        async with aclosing(coming) as lines:
            async for entry in lines:
                if host in ("", entry.host):
                    yield entry

    async def stop_run(self, run: str | None = None) -> None:
        """Stop a run (None: the one on the screen, else the newest) after its step, with a checkpoint."""
        with self._working("stopping the run"):
            current = self._state.run
            wanted = run if run is not None else (current.run if current is not None else None)
            host, summary = await find_run(self.inventory.cluster, self._fleet.transports, wanted)
            if summary.state in FINAL_STATES:
                raise RunError(f"{summary.id} is {summary.state} already", step="stop run")
            if current is not None and current.run == summary.id:
                self.emit(events.RunChanged(time=time.time(), run=summary.id, job=summary.job, state=RunState.STOPPING))
            await stop_run(self.inventory.cluster, self._fleet.transports[host], summary.id)

    async def drain(self, host: str) -> str:
        """Have ``host`` leave the run that is under way, after its step and with nothing lost; the run's name.

        Raises:
            UsageError: the inventory has no such host.
            RunError: no run is under way.
        """
        self._refuse_unknown(host, step="drain")
        with self._working("draining"):
            run = await membership.drain(self.inventory.cluster, self._fleet.transports, host)
            self.notice(Level.INFO, f"{host} leaves {run} after its step")
            return run

    async def status(self) -> tuple[tuple[str, protocol.RunSummary], ...]:
        """Ask what of ours is on every host, without probing; the answer is the runs, oldest first."""
        async with self._exclusively("asking"):
            await self._fleet.survey()
            return await list_runs(self.inventory.cluster, self._fleet.answering, self._fleet.failed)

    def accept_host_key(self, host: str) -> None:
        """Trust the key that ``host`` offered; it is probed again by the next :meth:`probe`."""
        if not self._fleet.transports[host].accept_offered_key():
            raise UsageError(f"{host} has no key to accept", step="host key")

    def teardown_preview(self) -> TeardownPreview:
        """What :meth:`down` would do now."""
        run = self._state.run
        live = ""
        if run is not None and not run.state.final:
            saved = f"last checkpoint: step {run.checkpoint_step:,}" if run.checkpoint else "no checkpoint yet"
            live = f"{run.run} at step {run.step:,} ({saved})"
        touched = {entry.host.name for entry in self._fleet.ledger.entries()}
        with_ray = [host.name for host in self._state.hosts if host.state in _WITH_RAY]
        stops = (f"Ray on {', '.join(with_ray)}",) if with_ray else ()
        away = tuple(
            host.name for host in self._state.hosts if host.state is HostState.UNREACHABLE and host.name in touched
        )
        return TeardownPreview(cluster=self.inventory.cluster, running=live, stops=stops, unreachable=away)

    async def down(self) -> TeardownReport:
        """Stop everything on every host of the inventory and of the ledger, and prove that nothing is left."""
        async with self._exclusively("stopping"):
            await self._detach()
            return await self._fleet.tear_down()

    async def close(self) -> None:
        """Detach: connections close, whatever runs on the hosts goes on."""
        await self._detach()
        await self._fleet.close()

    # --- Inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _working(self, word: str, *, first: bool = False) -> Iterator[None]:
        """Say what is under way; an error becomes a line in the log on its way to the caller.

        Stopping a run and draining a host go on beside other operations, so each takes back its own word alone.
        """
        self._under_way.insert(0 if first else len(self._under_way), word)
        try:
            yield
        except HeteroTuiError as error:
            if self._log_errors:
                self.notice(Level.BAD, str(error))
            raise
        finally:
            self._under_way.remove(word)
            for listener in tuple(self._listeners):
                listener(self._state)

    @asynccontextmanager
    async def _exclusively(self, word: str) -> AsyncIterator[None]:
        """One operation at a time; see :meth:`_working`."""
        async with self._operation:
            with self._working(word, first=True):
                yield

    def _refuse_beside_live_run(self, step: str) -> None:
        live = self._state.run
        if live is not None and not live.state.final:
            raise UsageError(f"{live.run} is under way", step=step, hint="stop it first")

    def _refuse_unknown(self, host: str, *, step: str) -> None:
        if self.inventory.host(host) is None:
            known = ", ".join(entry.name for entry in self.inventory.hosts)
            raise UsageError(f"no host {host!r} in the inventory", step=step, hint=f"hosts: {known}")

    def _run_is_on(self, host: str) -> None:
        self._run_host = host

    async def _attach_to_live_run(self) -> None:
        known = self._state.run
        if known is not None and not known.state.final:
            return
        live = await live_run(self.inventory.cluster, self._fleet.answering)
        if live is not None:
            self._run_host, summary = live
            self.emit(
                events.RunChanged(
                    time=time.time(), run=summary.id, job=summary.job, state=RunState(summary.state), detail="attached"
                )
            )
            self._follow(summary.id)

    async def _join(self, only: str | None = None) -> None:
        """Bring the cluster up as the last look found it, and have its run take in who is new."""
        before = self._fleet.members
        await self._fleet.bring_up(only)
        await self._add_to_run(before)

    async def _add_to_run(self, before: frozenset[str]) -> None:
        """Offer the devices of hosts that joined the cluster just now to the run that is under way, if there is one."""
        fleet = self._fleet
        new = {name: fleet.surveyed[name] for name in fleet.members - before}
        if not before or not new:
            return
        run = await membership.offer(self.inventory, fleet.answering, fleet.facts, new)
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

    async def _detach(self) -> None:
        """Follow no run, wait for no host."""
        follower, self._follower = self._follower, None
        if follower is not None:
            await cancel(follower)
        await self._recovery.close()
