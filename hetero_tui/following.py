"""The part of a session that follows runs: lists them, yields a run's events and logs, and attaches to a live run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from hetero_tui import deadlines, events
from hetero_tui.errors import HeteroTuiError, HostError, RunStopped
from hetero_tui.fleet.live import cancel
from hetero_tui.intents import ASKING, LoggedLine
from hetero_tui.inventory import Inventory
from hetero_tui.runs.attending import NoRecovery, Recovery, attend
from hetero_tui.runs.listing import find_among, find_run, ignore, list_runs, live_run
from hetero_tui.runs.log_following import logs_of_run
from hetero_tui.runs.recovery import FleetRecovery
from hetero_tui.scripting import Scripting
from hetero_tui.state import LOSS_POINTS, State
from hetero_tui.text import HostText
from remote_agent import protocol
from remote_agent.states import RayState, RunState


class Following(Scripting):
    """Operations that read runs, and the task that follows one of them."""

    inventory: Inventory
    _recovery: FleetRecovery
    _elsewhere: Elsewhere
    _follower: asyncio.Task[None] | None = None
    _run_host: str | None = None

    async def status(self, *, judge: bool = False) -> tuple[tuple[str, protocol.RunSummary], ...]:
        """Survey all hosts, ``judge`` those without a node, and return the runs, oldest first."""
        async with self._exclusively(ASKING):
            await self._fleet.survey()
            if judge:
                await self._fleet.judge_idle()
            return await list_runs(self.inventory.cluster, self._fleet.answering, self._fleet.failed)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Hosts that the inventory no longer has and something of ours may run on: no question reaches them."""
        return self._fleet.left_behind()

    async def events_of(
        self, run: str | None, most_steps: int | None = None
    ) -> AsyncGenerator[tuple[HostText, protocol.Event]]:
        """Yield (line as written, event) of a run (None: the newest) from seq 1 to its end, and fold each event.

        One that had ended is not started again. ``most_steps``: of its history about so many; None: all.

        Raises:
            RunError: there is no such run, or it ended without a last event.
        """
        recovery: Recovery = self._recovery
        if self._run_host is None or self._state.run is None or self._state.run.run != run:
            host, summary = await find_run(self.inventory.cluster, self._fleet.transports, run)
            run, self._run_host = summary.id, host
            recovery = NoRecovery(summary) if summary.state.final else recovery
            self.emit(events.RunChanged(run=run, job=summary.job, state=RunState(summary.state)))
            self.emit(events.RunBehind(run=run, seq=summary.seq, step=summary.step))
        assert run is not None
        fleet, head = self._fleet, self._run_host
        attended = attend(fleet.cluster, fleet.transports, run, head, self.emit, recovery, most_steps)
        try:
            async with aclosing(attended) as coming:
                async for line, event in coming:
                    yield line, event
        except HeteroTuiError as error:
            is_stopped = self._is_stopping() or isinstance(error, RunStopped)
            state = RunState.STOPPED if is_stopped else RunState.LOST
            self.emit(events.RunChanged(run=run, job="", state=state, detail=error.cause))
            raise

    async def logs_of(
        self,
        run: str | None,
        host: str = "",
        *,
        follow: bool,
        failed: Callable[[HostError], None],
        broken: Callable[[HostError], None] = ignore,
    ) -> AsyncGenerator[LoggedLine]:
        """Yield the log lines and prints of a run's processes (None: the newest) on all hosts, or on ``host``, by time.

        With ``follow`` it continues until the run ends. ``failed`` is called for each host that can't be asked,
        ``broken`` for each broken connection, which is then opened again. Raises UsageError if the inventory has no
        such host, RunError if there is no such run.
        """
        if host:
            self._refuse_unknown(host, step="logs")
        runs = await self.status()
        for found in self._fleet.surveyed.values():
            if found.error is not None and host in ("", found.host):
                failed(found.error)
        place, fleet = find_among(runs, run), self._fleet
        coming = logs_of_run(fleet, place, self.status, host, follow=follow, failed=failed, broken=broken)
        async with aclosing(coming) as entries:
            async for entry in entries:
                if host in ("", entry.host):
                    yield entry

    # --- Inside ------------------------------------------------------------------------------------------------------

    def _run_is_on(self, host: str) -> None:
        self._run_host = host

    async def _look_elsewhere(self) -> None:
        async with self._exclusively(ASKING):
            await self._fleet.survey()
            await self._attach_to_live_run()

    async def _attach_to_live_run(self) -> None:
        known = self._state.run
        if known is not None and not known.state.final:
            if self._follower is not None and not self._follower.done():
                return
            # An earlier session followed it: this one goes on with it, though another one may be newer.
            if any(each.id == known.run for _, each in await list_runs(self.inventory.cluster, self._fleet.answering)):
                self._follow(known.run)
                return
            self._state = replace(self._state, run=None)  # its machine does not answer
        live = await live_run(self.inventory.cluster, self._fleet.answering)
        if live is not None:
            self._run_host, summary = live
            self.emit(
                events.RunChanged(run=summary.id, job=summary.job, state=RunState(summary.state), detail="attached")
            )
            self.emit(events.RunBehind(run=summary.id, seq=summary.seq, step=summary.step))
            self._follow(summary.id)

    def _follow(self, run: str) -> None:
        async def consume() -> None:
            with suppress(HeteroTuiError):  # the log and the run's state show it
                async for _ in self.events_of(run, LOSS_POINTS):
                    pass

        if self._follower is not None:
            self._follower.cancel()
        self._follower = asyncio.create_task(consume(), name=f"follow {run}")

    async def _see_the_run_end(self) -> None:
        """Wait for the last event of the followed run, or mark the run as ended with the cluster."""
        if self._follower is not None:
            await asyncio.wait({self._follower}, timeout=deadlines.LAST_EVENT)
        await self._detach()
        run = self._state.run
        if run is not None and not run.state.final:
            words = "the cluster was taken down"
            self.emit(events.RunChanged(run=run.run, job=run.job, state=RunState.STOPPED, detail=words))

    async def _detach(self) -> None:
        """Stop following the run and waiting for hosts."""
        await self._elsewhere.close()
        follower, self._follower = self._follower, None
        if follower is not None:
            await cancel(follower)
        await self._recovery.close()


class Elsewhere:
    """Told of every event that is folded; begins ``look`` where a run, or a cluster, is not on the screen yet.

    Attributes:
        is_wanted: false: nothing is begun, as for a command that does one thing.
    """

    def __init__(self, look: Callable[[], Coroutine[Any, Any, None]], is_busy: Callable[[], bool]) -> None:
        self._look, self._is_busy = look, is_busy
        self.is_wanted = False
        self._looking: asyncio.Task[None] | None = None
        self._ended = float("-inf")  # when the run on the screen was seen to end

    def __call__(self, event: events.Event, before: State, after: State) -> None:
        """Look at an event."""
        shown = after.run
        if shown is not None and shown.state.final and before.run is not shown:
            self._ended = time.monotonic()
        if not isinstance(event, events.HostSampled) or not self.is_wanted or self._is_busy():
            return
        is_new = self._has_new_run(event.sample.run, after) or (
            event.sample.ray is RayState.RUNNING and after.head is None and not after.is_taken_down(event.sample.epoch)
        )
        if not is_new:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="look elsewhere")

    def _has_new_run(self, run: str, state: State) -> bool:
        shown = state.run
        if any(known.id == run and known.script for known in state.runs or ()):
            return False  # a script, or a sweep, is listed and not followed
        if not run or shown is None or (shown.run != run and shown.state.final):
            return bool(run)
        # A coordinator goes on for a moment after its last event; later than that, its run goes on again.
        return shown.state.final and time.monotonic() - self._ended >= deadlines.RUN_RESUMED

    async def close(self) -> None:
        """What was begun ends."""
        task, self._looking = self._looking, None
        if task is not None:
            await cancel(task)
