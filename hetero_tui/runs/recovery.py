"""Lets runs go on that ended too early: by hand, after the loss of their head, after the end of their coordinator.

What these have in common is the fleet that they change and that another laptop may do the same at this moment; who was
first is asked, and agreed with.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from hetero_tui import deadlines, events
from hetero_tui.errors import CommandFailed, HeteroTuiError, HostError, RunError, TakenDown
from hetero_tui.events import Level
from hetero_tui.fleet.live import LiveFleet, cancel
from hetero_tui.fleet.survey import head_name, is_taken_down, mark_replaced, running_head, survey
from hetero_tui.planning.cluster import holders
from hetero_tui.runs.failover import Formed, form_anew, refuse_if_head_lives
from hetero_tui.runs.listing import START_ANEW, find_among, list_copies, live_run, refuse_if_stopped, told_best, way_on
from hetero_tui.runs.resume import refuse_if_done, refuse_without_checkpoint, resume
from hetero_tui.runs.watching import Seen
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.states import RunState

T = TypeVar("T")

Exclusively = Callable[[str], AbstractAsyncContextManager[None]]
"""One operation at a time; the word says for the screen which one."""


class FleetRecovery:
    """Changes ``fleet`` so that a run goes on; see :class:`hetero_tui.runs.attending.Recovery`.

    ``moved`` is told the host where the run is from then on. ``take_in`` has a host that is back join the cluster, also
    a head whose place was taken. ``is_stopping``: the user asked for the run's end, so that it does not go on.
    """

    def __init__(
        self,
        fleet: LiveFleet,
        exclusively: Exclusively,
        moved: Callable[[str], None],
        take_in: Callable[[str], Awaitable[None]],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_stopping = is_stopping
        self._fleet, self._exclusively, self._moved, self._take_in = fleet, exclusively, moved, take_in
        self._returning: dict[str, asyncio.Task[None]] = {}
        self._looked_after: frozenset[str] = frozenset()
        self._at_rest = asyncio.Event()  # set: no run is being let go on, which all hosts that answer take part in
        self._at_rest.set()

    async def by_hand(self, run: str | None, settings: Mapping[str, str]) -> str:
        """Let a run (None: the newest) go on from its newest checkpoint; a cluster that is down is brought up first.

        Runs within an operation of the caller's; ``settings`` are those that change. Returns its name.

        Raises:
            RunError: it can't go on.
            ClusterError: its head works, and only this laptop does not reach it; or no other can be formed.
        """
        fleet = self._fleet
        looking = asyncio.create_task(fleet.look(), name="look before resuming")
        try:  # what the run's own files say needs no look at the machines
            failed: list[HostError] = []
            copies = await list_copies(fleet.cluster, fleet.transports, failed.append)
            _, summary = find_among(told_best(copies), run, failed)
            if summary.state.final:
                refuse_if_done(summary, settings)
                refuse_without_checkpoint(summary, copies, failed)
            await looking
        finally:
            await cancel(looking)
        if head_name(fleet.surveyed) is None:
            if running_head(fleet.surveyed) is not None:
                await refuse_if_head_lives(fleet.cluster, fleet.answering)
            known = summary.id
            host, summary = await self._form_anew(
                known, fleet.answering, lambda: self._resume(known, settings=settings)
            )
        else:
            host, summary = await self._resume(run, settings=settings)
        if summary.host != host and summary.host not in fleet.members:
            self._take_back(summary.host)
        return summary.id

    async def fail_over(self, run: str, head: str, cause: str, seen: Seen) -> str:
        """Form the cluster anew without ``head``, and let the run go on there."""
        fleet = self._fleet
        fleet.emit(events.HostLost(host=head, cause=cause))
        self._notice(f"the head is lost; {run} goes on on another host as soon as there is a new one")
        others = {name: link for name, link in fleet.transports.items() if name != head}
        async with self._working("failing over"), fleet.alone("resume", others):  # another laptop may do the same
            await self._survey(run, others)
            there = await self._form_anew(run, others, lambda: self._resume_unless_another_did(run, cause, seen))
        self._moved(there)
        self._take_back(head)
        return there

    async def restart(self, run: str, cause: str) -> str:
        """Start the run's coordinator again: on the head as it is, or on a new one where the head's Ray has ended."""
        if self._is_stopping():
            raise TakenDown(f"{run} ended before it could save a checkpoint", step="stop run")
        self._fleet.emit(events.RunChanged(run=run, job="", state=RunState.STARTING))
        async with self._working("resuming"), self._fleet.alone("resume", self._fleet.answering or None):
            await self._survey(run, self._fleet.transports)
            self._notice(cause)
            if not self._fleet.facts:
                await self._fleet.look()
            if head_name(self._fleet.surveyed) is None:  # its coordinator ended with the head's Ray
                return await self._form_anew(run, self._fleet.answering, lambda: self._resume_unless_another_did(run))
            return await self._resume_unless_another_did(run)

    def look_after(self, hosts: frozenset[str]) -> None:
        """Have each of these hosts taken in once it answers and has nothing that brings it back; no others any more."""
        for host in self._looked_after - hosts:
            task = self._returning.pop(host, None)
            if task is not None:
                task.cancel()
        for host in hosts:  # one that was looked after before may be back and lost again, perhaps from another run
            self._take_back(host, only_if_needed=True)
        self._looked_after = hosts

    async def close(self) -> None:
        """No host is waited for from now on."""
        tasks = list(self._returning.values())
        self._returning.clear()
        self._looked_after = frozenset()
        await cancel(*tasks)

    @asynccontextmanager
    async def _working(self, word: str) -> AsyncIterator[None]:
        """As ``exclusively``; no host is taken back meanwhile: that would take its time, and the hosts'."""
        self._at_rest.clear()
        try:
            async with self._exclusively(word):
                yield
        finally:
            self._at_rest.set()

    # --- Inside ------------------------------------------------------------------------------------------------------

    async def _form_anew(
        self, run: str, transports: Mapping[str, Transport], go_on: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Form a cluster of those hosts, with a head that can go on with ``run``; hosts' states follow.

        ``go_on`` lets the run go on once there is a head, beside the other hosts' start, which takes as long as that of
        a coordinator. A host that joins later than the run begins takes part from then on.
        """
        fleet = self._fleet
        going: asyncio.Task[T] | None = None

        def adopt(formed: Formed) -> None:
            nonlocal going
            fleet.adopt(formed.probed, formed.surveyed, formed.report)
            going = going or asyncio.create_task(go_on(), name=f"let {run} go on")

        try:
            adopt(await form_anew(fleet.inventory, transports, fleet.ledger, fleet.emit, run, adopt))
            assert going is not None, "adopt has begun it"
            return await going
        finally:
            if going is not None:
                await cancel(going)

    async def _survey(self, run: str, hosts: Mapping[str, Transport]) -> None:
        """Survey ``hosts``; raise TakenDown if a user ended the run, or if none has a node, after a `down`."""
        fleet = self._fleet
        _, copies = await asyncio.gather(fleet.survey({*hosts}), list_copies(fleet.cluster, hosts))
        known = [summary for _, summary in copies if summary.id == run]
        refuse_if_stopped(run, known)
        if is_taken_down(self._fleet.surveyed):
            hint = way_on(run, known, "starts the cluster and lets it go on")
            raise TakenDown(f"{run} ended without a last word, and the cluster is down", step="follow", hint=hint)

    async def _resume(
        self,
        run: str | None,
        cause: str = "",
        seen: Seen | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[str, protocol.RunSummary]:
        """The host where the run goes on from its newest checkpoint, and how it stood before."""
        fleet = self._fleet
        host, summary = await resume(fleet, run, settings=settings, cause=cause, seen=seen)
        self._moved(host)
        changed = events.RunChanged(run=summary.id, job=summary.job, state=RunState.STARTING, history=summary.seq)
        fleet.emit(changed)
        return host, summary

    async def _resume_unless_another_did(self, run: str, cause: str = "", seen: Seen | None = None) -> str:
        """Let a run that is followed go on; the host where it does. Another laptop may do the same at this moment."""
        try:
            host, _ = await self._resume(run, cause, seen)
        except (RunError, CommandFailed):
            found = await live_run(self._fleet.cluster, self._fleet.answering)
            if found is None or found[1].id != run:
                raise
            host = found[0]
            self._moved(host)
        return host

    def _take_back(self, host: str, *, only_if_needed: bool = False) -> None:
        """Once a host that was lost can be reached again, take it into the cluster that is there.

        ``only_if_needed``: not as long as a node of that cluster runs there, or is started by its supervisor.
        """
        waiting = self._returning.get(host)
        if host not in self._fleet.transports or (waiting is not None and not waiting.done()):
            return

        async def wait() -> None:
            told = ""
            for pause in deadlines.reconnect_pauses():
                await asyncio.sleep(pause)
                await self._at_rest.wait()
                try:
                    if only_if_needed and await self._is_member(host):
                        continue  # it comes by itself, or finds out that it can't
                    await self._take_in(host)
                    if host in self._fleet.members:  # it may have gone again: the cluster does without it
                        return
                except HostError:  # the host's own line says so
                    continue
                except HeteroTuiError as error:
                    if told != (told := str(error)):
                        self._notice(f"{host} can't be taken back, and is tried again: {told}")

        self._returning[host] = asyncio.create_task(wait(), name=f"take back {host}")

    async def _is_member(self, host: str) -> bool:
        """Whether a node of the newest cluster that we know runs there, or is started by its supervisor.

        Raises:
            HostError: the host can't be asked; that it was connected a moment ago says nothing.
        """
        fleet = self._fleet
        answers = await survey(fleet.cluster, {host: fleet.transports[host]})
        error = answers[host].error
        if error is not None:
            raise error
        found = mark_replaced({**fleet.surveyed, **answers})[host]
        return found.runs_ray or found.restarts_ray

    def _notice(self, text: str) -> None:
        self._fleet.emit(events.Notice(level=Level.BAD, text=text))


class LookingOn(FleetRecovery):
    """For a session that changes nothing on the machines: it only says what another one, or a command, has to do.

    Once the run goes on, the hosts' samples tell of it.
    """

    async def fail_over(self, run: str, head: str, cause: str, seen: Seen) -> str:
        """Say that the head is lost."""
        self._fleet.emit(events.HostLost(host=head, cause=cause))
        raise RunError(_left_alone(run, f"its head {head} is lost"), step="follow")

    async def restart(self, run: str, cause: str) -> str:
        """Say that the coordinator is gone, or that a user ended the run."""
        copies = await list_copies(self._fleet.cluster, self._fleet.answering)
        known = [summary for _, summary in copies if summary.id == run]
        refuse_if_stopped(run, known)
        if known and not holders(run, copies):
            raise RunError(cause, step="follow", hint=START_ANEW)
        raise RunError(_left_alone(run, cause), step="follow")

    def look_after(self, hosts: frozenset[str]) -> None:
        """Hosts come back by themselves, or another session takes them in."""


def _left_alone(run: str, cause: str) -> str:
    return f"{cause}; this app only shows: `hetero-tui resume {run}`, or another app, lets it go on"
