"""Defines the live session: one inventory, its connections, its state, and the operations that change it.

The app and the commands both call its methods and render its :attr:`Session.state`. Every change is an event through
:func:`hetero_tui.fold.apply`. Operations exclude each other; watching hosts and following a run continue beside them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hetero_tui import events
from hetero_tui.errors import HostError, OrderError
from hetero_tui.events import ClusterState, Level
from hetero_tui.fleet.bring_up import UpReport, judged
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.fleet.probing import Probed
from hetero_tui.fleet.survey import Surveyed, head_name
from hetero_tui.fleet.teardown import announcement, preview
from hetero_tui.following import Elsewhere, Following
from hetero_tui.intents import ADDING, PLANNING, PROBING, RESUMING, STARTING, TRAINING, TeardownPreview, TeardownReport
from hetero_tui.inventory import Inventory
from hetero_tui.keeper import STOPPING
from hetero_tui.recording.recorder import Recorder
from hetero_tui.runs import measured, membership
from hetero_tui.runs.before_start import archive_of, needed_by_head, refuse_early, refuse_for
from hetero_tui.runs.description import described
from hetero_tui.runs.launch import launch
from hetero_tui.runs.listing import beside, end_lost, find_among, find_to_stop, list_runs, live_runs, stop_run
from hetero_tui.runs.order import READY_JOBS, Order, read_order
from hetero_tui.runs.recovery import FleetRecovery
from hetero_tui.state import initial
from remote_agent import protocol
from remote_agent.planning.survey import Survey
from remote_agent.states import RunState


class Session(Following):
    """A session with one fleet. Use it as an async context manager, or call :meth:`close`."""

    _looks_elsewhere = False  # what another terminal starts is followed as well

    def __init__(
        self,
        inventory: Inventory,
        path: Path,
        *,
        accept_new_host_keys: bool = False,
        ledger_folder: Path | None = None,
        log_errors: bool = True,
        watches: bool = True,
    ) -> None:
        """Create a session without connections; ``ledger_folder`` replaces the user's state folder (demo, tests).

        ``log_errors``: an operation's error is also a line of the log; commands print the exception instead.
        ``watches``: the load of hosts that answer is followed; false for a command that asks once.
        """
        super().__init__(
            initial(inventory.cluster, tuple((host.name, host.address or "this computer") for host in inventory.hosts)),
            log_errors=log_errors,
        )
        self.inventory = inventory
        self.inventory_path = str(path)
        self.jobs: tuple[str, ...] = READY_JOBS
        self._fleet = LiveFleet(
            inventory,
            self.emit,
            accept_new_host_keys=accept_new_host_keys,
            path=path,
            ledger_folder=ledger_folder,
            watches=watches,
        )
        self._recovery = FleetRecovery(
            self._fleet, self._exclusively, self._run_is_on, self._take_in, self._is_stopping
        )
        self._recorder: Recorder | None = None
        self._elsewhere = Elsewhere(lambda: self._look_elsewhere(), lambda: bool(self.busy))
        self._elsewhere.is_wanted = self._looks_elsewhere
        self.tap(self._elsewhere)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- What is known -----------------------------------------------------------------------------------------------

    @property
    def probed(self) -> tuple[Probed, ...]:
        """The results of the last probe."""
        return self._fleet.probed

    @property
    def surveyed(self) -> Mapping[str, Surveyed]:
        """The results of the last survey: the node on each host."""
        return self._fleet.surveyed

    @property
    def up_report(self) -> UpReport | None:
        """The report of the last bring-up; None: there was none."""
        return self._fleet.report

    @property
    def absent(self) -> Mapping[str, HostError]:
        """The hosts of the inventory that can't take part as of the last look and bring-up, each with the reason."""
        fleet = self._fleet
        _, failed = judged(self.inventory, fleet.probed, head_name(fleet.surveyed))
        failed |= {name: found.error for name, found in fleet.surveyed.items() if found.error is not None}
        failed |= fleet.report.failed if fleet.report is not None else {}
        return {name: error for name, error in failed.items() if name not in fleet.members}

    def record(self, place: Path | None = None) -> Path | None:
        """Record all events from now on until :meth:`close`; returns the file."""
        self._recorder = Recorder(place, complain=lambda text: self.notice(Level.WARNING, text))
        self._recorder.begin(self._state)
        self.tap(self._recorder)
        return self._recorder.path

    # --- Operations --------------------------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Probe and survey all hosts; then watch them, and follow a run that is in progress."""
        async with self._exclusively(PROBING):
            await self._fleet.look()
            await self._attach_to_live_run()

    async def up(self, sources: Sources | None = None) -> None:
        """Start the cluster on every fit host; running nodes are not touched, and a run gets the new hosts.

        With ``sources``, hosts without an environment get one first.
        """
        word = STARTING if self._state.cluster_state is ClusterState.DOWN else ADDING
        async with self._exclusively(word), self._fleet.alone("up"):
            await self._look(sources)
            await self._join()

    async def _take_in(self, host: str) -> None:
        """Let one host that is back join the cluster and its run, without probing the others, which train.

        It does nothing if the cluster was taken down meanwhile.
        """
        fleet = self._fleet
        async with self._exclusively(ADDING), fleet.alone("up", {host, *fleet.answering}):
            is_known = bool(fleet.facts) and head_name(fleet.surveyed) is not None
            if is_known:
                await fleet.survey({host, *fleet.answering})
                if host in fleet.members:  # what this waited for let it join
                    return
            await (fleet.look_at(host) if is_known else fleet.look())
            if head_name(fleet.surveyed) is not None:
                await self._join(host)

    def mistakes_in(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> tuple[str, ...]:
        """The mistakes in an order for :meth:`train` that can be found before anything starts."""
        try:
            read_order(job, settings, paths)
        except OrderError as error:
            return error.mistakes
        return ()

    async def train(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> str:
        """Bring the cluster up if it is down, start a run, and follow it."""
        run = await self.launch(read_order(job, settings, paths))
        self._follow(run)
        return run

    async def launch(
        self, order: Order, sources: Sources | None = None, asks: Callable[[str], bool] | None = None
    ) -> str:
        """Bring the cluster up if it is down, start a run or a script, and return its name.

        Packages that the job requires and hosts lack are installed from ``sources``, or if ``asks`` agrees.
        """
        async with self._exclusively(TRAINING), self._fleet.alone("train"):
            if order.script is None or order.search is not None:
                self._refuse_beside_live_run("train")
                refuse_for(order, self.inventory.hosts)
            archive = await archive_of(order, self.notice)
            fleet = self._fleet
            await self._look(sources, order.job.requirements, asks, needed_by_head(order))
            refuse_early(fleet, order)
            order = await described(fleet, order, archive, self.notice)
            if head_name(fleet.surveyed) is None:
                await fleet.bring_up()
            elif order.script is None or order.search is not None:
                others = beside(await list_runs(fleet.cluster, fleet.answering))
                if others:
                    self.notice(Level.WARNING, others)
            run, head = await launch(fleet, order, archive)
            if order.script is None:
                self._run_is_on(head)
                self.emit(events.RunChanged(run=run, job=order.job.reference, state=RunState.STARTING))
            return run

    async def survey_of(self, order: Order, *, anew: bool = False) -> tuple[Survey, bool]:
        """Measurements of the fleet and a job, and whether they were made now."""
        async with self._exclusively(PLANNING), self._fleet.alone("plan"):
            return await measured.survey_of(self._fleet, order, self.notice, anew=anew)

    async def resume_run(self, run: str | None = None, settings: Mapping[str, str] = types.MappingProxyType({})) -> str:
        """Resume a run (None: the newest) from its newest checkpoint, with these new ``settings``; return its name.

        A cluster that is down is brought up first. Raises RunError if the run can't be resumed.
        """
        async with self._exclusively(RESUMING), self._fleet.alone("resume"):
            self._refuse_beside_live_run("resume run")
            return await self._recovery.by_hand(run, settings)

    async def resume(self, run: str | None = None) -> str:
        """Resume a run (None: the one on the screen, or else the newest), follow it, and return its name."""
        shown = self._state.run
        run = await self.resume_run(run if run is not None or shown is None else shown.run)
        self._follow(run)
        return run

    async def stop_run(self, run: str | None = None) -> protocol.RunSummary:
        """Stop a run (None: the one on the screen, else the only one under way) after its step, with a checkpoint.

        One on a host that was taken out of the inventory is found, too. A lost one counts as stopped from then on.
        Returns the run as it stands then.

        Raises:
            UsageError: several are under way, and none was named.
            RunError: there is no such run, or it is over.
            HostError: its head failed at it.
        """
        with self._working("ending the run"):
            cluster, current = self.inventory.cluster, self._state.run
            wanted = run if run is not None else (current.run if current is not None else None)
            async with self._fleet.with_former() as transports:
                failed: list[HostError] = []
                host, summary = find_to_stop(await list_runs(cluster, transports, failed.append), wanted, failed)
                if summary.state is RunState.LOST:
                    async with self._fleet.alone("stop"):  # another laptop may let it go on at this moment
                        host, summary = find_to_stop(await list_runs(cluster, transports), summary.id)
                        if summary.state is RunState.LOST:
                            await end_lost(cluster, transports, summary.id)
                            return find_among(await list_runs(cluster, transports), summary.id)[1]
                if current is not None and current.run == summary.id:
                    self.emit(events.RunChanged(run=summary.id, job=summary.job, state=RunState.STOPPING))
                await stop_run(cluster, transports[host], summary.id)
                return find_among(await list_runs(cluster, {host: transports[host]}), summary.id)[1]

    async def drain(self, host: str) -> membership.Asked:
        """Take ``host`` out of the current run after its step, without loss.

        Raises UsageError if the inventory has no such host, or it is only a server, RunError if no run is in progress.
        """
        self._refuse_unknown(host, step="drain")
        self._refuse_server(host)
        with self._working("draining"):
            asked = await membership.drain(self.inventory.cluster, self._fleet.transports, host)
            self.notice(Level.INFO, asked.said)
            return asked

    async def bring_back(self, host: str) -> membership.Asked:
        """Let ``host`` take part again at once: it was drained, is paused after failures, or left the cluster.

        Raises as :meth:`drain` does.
        """
        self._refuse_unknown(host, step="undrain")
        with self._working("bringing back"):
            fleet = self._fleet
            if host not in fleet.facts or host not in fleet.members:
                await fleet.look_at(host)
            if host not in fleet.members and head_name(fleet.surveyed) is not None:
                await self._take_in(host)  # this also adds it to the run
                runs = [run.id for _, run in await live_runs(self.inventory.cluster, fleet.answering)]
                if not runs:
                    return membership.Asked("", f"{host} is in the cluster again; no run is under way")
                return membership.soon(" and ".join(runs), host)
            asked = await membership.undrain(fleet, host)
            self.notice(Level.INFO, asked.said)
            return asked

    def teardown_preview(self) -> TeardownPreview:
        """Preview what :meth:`down` would do now."""
        return preview(self._state, {entry.host.name for entry in self._fleet.ledger.entries()})

    async def down(self, purge: bool = False) -> TeardownReport:
        """Stop everything on every host of inventory and ledger, and verify it; ``purge`` also removes environments.

        Raises ClusterError if another inventory's cluster of the same name is up.
        """
        before = self._state
        with self._working(STOPPING):
            self._fleet.refuse_name_of_another()
        self.notice(Level.INFO, announcement(self.teardown_preview()))
        self.emit(events.ClusterChanged(state=ClusterState.STOPPING))
        try:
            async with self._exclusively(STOPPING), self._fleet.alone("down"):
                await self._recovery.close()
                report = await self._fleet.tear_down(purge)
                await self._see_the_run_end()
                return report
        except BaseException:
            was = events.ClusterChanged(state=before.cluster_state, head=before.head)
            self.emit(was)  # nothing was stopped, since another command has locked the hosts
            raise

    async def close(self) -> None:
        """Close all connections; processes on the hosts continue."""
        await self._detach()
        await self._fleet.close()
        if self._recorder is not None:
            self._recorder.close()

    # --- Inside ------------------------------------------------------------------------------------------------------

    async def _join(self, only: str | None = None) -> None:
        """Bring the cluster up from the last probe and survey, and add new hosts to its run."""
        before = self._fleet.members
        await self._fleet.bring_up(only)
        said = await membership.offer_new(self._fleet, before)
        if said:
            self.notice(Level.INFO, said)
