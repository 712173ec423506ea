"""The session as the app needs it: beside what commands do, it reads runs and logs, and brings hosts back."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hetero_tui import deadlines, events
from hetero_tui.errors import HostError, HostKeyChanged, HostKeyUnknown, RunError
from hetero_tui.events import HostState, Level
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.fleet.live import cancel
from hetero_tui.fold import apply
from hetero_tui.intents import LoggedLine, TeardownReport
from hetero_tui.outcomes import BootstrapReport, CheckReport
from hetero_tui.runs.listing import list_runs
from hetero_tui.runs.recovery import LookingOn
from hetero_tui.session import Session
from hetero_tui.state import LOSS_POINTS, RunView, State
from hetero_tui.transport import shell_command


class AppSession(Session):
    """One fleet with the screens on it."""

    _asking: asyncio.Task[None] | None = None
    _looks_elsewhere = True

    def only_show(self) -> None:
        """From now on, change nothing on the hosts that no key asks for: for an app whose keys change nothing."""
        self._recovery = LookingOn(self._fleet, self._exclusively, self._run_is_on, self._take_in, self._is_stopping)

    def go_on_from(self, former: State) -> None:
        """Show what the session before showed, whose inventory's file has changed since; :meth:`probe` goes on there.

        The run stays the same one, and the log and what is known of machines that are as they were stay, too. A run
        that is under way is followed at once: its steps go on while the machines are looked at.
        """
        if former.cluster != self.inventory.cluster:
            return
        known = {(host.name, host.address): host for host in former.hosts}
        places = {(host.name, host.address) for host in self._state.hosts}
        hosts = tuple(known.get((host.name, host.address), host) for host in self._state.hosts)
        is_there = any(host.name == former.head for host in hosts)
        self._state = replace(former, hosts=hosts, head=former.head if is_there else None)
        run = former.run
        if run is not None and not run.state.final and former.head in {name for name, _ in known.keys() & places}:
            self._follow(run.run)

    async def probe(self) -> None:
        """Probe all hosts; then try those again that did not answer, and say which runs there are."""
        await super().probe()
        await self._list_runs()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_again(), name="ask again")

    async def install(self, extras: Sequence[str], *, from_laptop: bool) -> BootstrapReport:
        """Give every host that lacks one an environment, from where the environment's variables say packages are."""
        return await self.bootstrap(Sources.of_variables(from_laptop=from_laptop), extras)

    async def look_for_problems(self, *, mends: bool) -> CheckReport:
        """What :meth:`check` finds; ``mends``: environments of ours that do not work are made anew."""
        return await self.check(Sources.of_variables() if mends else None)

    async def list_runs(self) -> None:
        """Ask every host that answers which runs it has."""
        if not self._fleet.surveyed:
            await self.status()
        await self._list_runs()

    async def _look_elsewhere(self) -> None:
        """Also say which runs there are: what another terminal began may be none that is followed."""
        await super()._look_elsewhere()
        await self._list_runs()

    async def _list_runs(self) -> None:
        answering = {name: link for name, link in self._fleet.answering.items() if not self._is_away(name)}
        found = await list_runs(self.inventory.cluster, answering)
        self.emit(events.RunsListed(runs=tuple(summary for _, summary in found)))

    async def read_run(self, run: str) -> RunView:
        """A run as its events tell it; raises RunError if there is no such run, or it has no event yet."""
        summary, happened = await self.history_of(run, most_steps=LOSS_POINTS)
        state = State(cluster=self.inventory.cluster)
        for event in happened:
            state = apply(state, events.RunProgressed(run=summary.id, event=event))
        if state.run is not None and not state.run.state.final and summary.state.final:
            lost = events.RunChanged(
                time=summary.ended or time.time(), run=summary.id, job=summary.job, state=summary.state
            )
            state = apply(state, lost)
        assert state.run is not None, "a run without an event is refused"
        return state.run

    def logs(self, run: str | None, host: str) -> AsyncGenerator[LoggedLine]:
        """What a run's processes log: what is there, and what comes as long as it goes on."""
        current = self.state.run
        live = current is not None and not current.state.final and run in (None, current.run)

        def failed(error: HostError) -> None:
            known = self.state.host(error.host)
            if known is None or known.state is not HostState.UNREACHABLE:  # that it is has been told
                self.notice(Level.WARNING, str(error))

        return self.logs_of(run, host, follow=live, failed=failed)

    async def down(self, purge: bool = False) -> TeardownReport:
        """Stop everything on every host; then their use is watched again, as before ``up``, and runs are listed."""
        report = await super().down(purge)
        self._fleet.watch_answering()
        await self._list_runs()
        return report

    def shell_command(self, host: str) -> tuple[str, ...]:
        """The command that opens a shell on ``host``."""
        known = self.inventory.host(host)
        assert known is not None, "the screens name hosts of the inventory"
        return shell_command(known, self.inventory)

    async def save(self, name: str, text: str) -> str:
        """Write a text to a new file in the working folder; returns its path. Raises RunError."""
        return await asyncio.to_thread(_save, name, text)

    async def close(self) -> None:
        """Detach."""
        asking, self._asking = self._asking, None
        if asking is not None:
            await cancel(asking)
        await super().close()

    async def _ask_again(self) -> None:
        """Try hosts that did not answer the last probe again, with growing pauses, as long as this session lives.

        Also ask again for the runs while one of them goes on that is not followed.
        """
        pauses = deadlines.reconnect_pauses()
        while True:
            away = [
                entry.host
                for entry in self._fleet.probed
                if entry.error is not None and not isinstance(entry.error, HostKeyChanged | HostKeyUnknown)
            ]
            silent = [name for name in away if self._is_away(name)]
            if not silent:
                pauses = deadlines.reconnect_pauses()
            pause = next(pauses) if silent else deadlines.RECONNECT_LONGEST
            for name in silent:
                host = self.state.host(name)
                cause, hint = (host.detail, host.hint) if host is not None else ("", "")
                self.emit(events.HostLost(host=name, cause=cause, hint=hint, retry_s=pause))
            await asyncio.sleep(pause)
            if self.busy:
                continue
            if self._has_unseen_run():
                await self._list_runs()
            await asyncio.gather(*(self._ask(name) for name in silent))

    def _has_unseen_run(self) -> bool:
        """Whether a run goes on, as far as is known, that is not followed: a sweep, a script, another training run."""
        shown = self.state.run.run if self.state.run is not None else ""
        runs = self.state.runs or ()
        return any(not (run.state.final or run.id == shown or self._is_away(run.host)) for run in runs)

    async def _ask(self, name: str) -> None:
        """Look at a host that was silent, if it answers now; the silence of others does not hold it up."""
        with suppress(HostError, TimeoutError):
            async with asyncio.timeout(deadlines.CONNECT):
                await self._fleet.transports[name].connect()
            async with self._operation:
                await self._fleet.look_at(name)

    def _is_away(self, name: str) -> bool:
        host = self.state.host(name)
        return host is not None and host.state is HostState.UNREACHABLE


def _save(name: str, text: str) -> str:
    free = shutil.disk_usage(Path.cwd()).free
    if free < len(text) * 4:
        raise RunError(f"the disk has no room for {name}", step="save")
    for number in range(1, 1000):
        path = Path.cwd() / (name if number == 1 else f"{Path(name).stem}-{number}{Path(name).suffix}")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text + "\n")
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(f"{path} can't be written: {error.strerror}", step="save") from error
        return str(path)
    raise RunError(f"there are a thousand files such as {name} already", step="save")
