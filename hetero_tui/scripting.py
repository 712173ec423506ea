"""The part of a session for other programs: runs Ray's commands on the cluster, and exports events and weights."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from hetero_tui.errors import HostError, UsageError
from hetero_tui.fleet.survey import head_name
from hetero_tui.installing import Installing
from hetero_tui.intents import ASKING
from hetero_tui.runs.follow import history
from hetero_tui.runs.listing import find_among, find_run, list_runs, with_silent
from hetero_tui.runs.order import rays_output, refuse_ours
from hetero_tui.runs.serving import Service, place_of, serving
from hetero_tui.runs.sweep import result_of
from hetero_tui.runs.weights import SINGLE, fetch_weights, refuse_without
from hetero_tui.text import HostText
from remote_agent import protocol


class Scripting(Installing):
    """Operations for scripts, Ray's own command line, and the results of a run."""

    async def find(self, run: str | None) -> tuple[str, protocol.RunSummary]:
        """The host and the state of a run (None: the newest); raises RunError if there is no such run."""
        with self._working("looking for the run"):
            return await find_run(self._fleet.cluster, self._fleet.transports, run)

    async def newest(self) -> tuple[str, tuple[str, ...]]:
        """The name of the newest run, and the others that are under way; raises RunError if there is no run."""
        with self._working("looking for the run"):
            failed: list[HostError] = []
            runs = await list_runs(self._fleet.cluster, self._fleet.transports, failed.append)
            name = find_among(runs, None, failed)[1].id
            return name, tuple(run.id for _, run in runs if not run.state.final and run.id != name)

    async def history_of(
        self, run: str | None, most_steps: int | None = None
    ) -> tuple[protocol.RunSummary, tuple[protocol.Event, ...]]:
        """A run (None: the newest) and its events so far, with about ``most_steps`` of its steps (None: all).

        Raises RunError if there is no such run, or it has no event.
        """
        with self._working("reading events"):
            host, summary = await find_run(self._fleet.cluster, self._fleet.transports, run)
            coming = history(self._fleet.transports[host], self._fleet.cluster, summary.id, most_steps)
            async with aclosing(coming) as found:
                return summary, tuple([event async for event in found])

    async def export(
        self, run: str | None, form: str, path: Path | None, choice: protocol.Choice
    ) -> tuple[str, Path, int]:
        """Fetch a run's weights, by default to a path with its name; returns the run, the path and the step.

        Raises:
            RunError: there is no such run, or it has no such checkpoint that can be exported in this format.
        """
        host, summary = await self.find(run)
        refuse_without(summary, has=summary.checkpoint is not None, step="export")
        place = path if path is not None else Path(f"{summary.id}{f'.{form}' if form in SINGLE else f'-{form}'}")
        with self._working("exporting"):
            transport, cluster = self._fleet.transports[host], self._fleet.cluster
            return summary.id, place, await fetch_weights(transport, cluster, summary.id, form, place, choice)

    async def sweep_result(self, run: str) -> protocol.SweepResult:
        """The result of a sweep; raises RunError if there is no such sweep, or it has no result yet."""
        host, summary = await self.find(run)
        with self._working("reading the sweep"):
            return await result_of(self._fleet.transports[host], self._fleet.cluster, summary.id)

    @asynccontextmanager
    async def serve(
        self, run: str | None, host: str, port: int, device: str, choice: protocol.Choice
    ) -> AsyncIterator[Service]:
        """Serve a checkpoint of a run (None: the newest run) over HTTP on ``host`` (empty: its head) while open.

        Raises RunError, UsageError and HostError as :mod:`hetero_tui.runs.serving` does.
        """
        fleet = self._fleet
        if host:
            self._refuse_unknown(host, step="serve")
        with self._working("serving"):
            name, place = await place_of(fleet.cluster, dict(fleet.transports), run, host)
        transport = fleet.transports[place]
        async with serving(transport, fleet.cluster, name, port=port, device=device, choice=choice) as service:
            yield service

    async def rays_own(self, words: Sequence[str]) -> AsyncGenerator[HostText]:
        """Yield the output lines of Ray's own command line on the head.

        Raises:
            UsageError: the cluster is down, or the command is refused for a cluster of ours.
            HostError: Ray reports a failure, or the head can't be asked.
        """
        refuse_ours(words)
        async with self._exclusively(ASKING):
            await self._fleet.survey()
        head = head_name(self._fleet.surveyed)
        if head is None:
            failed = [found.error for found in self._fleet.surveyed.values() if found.error is not None]
            cause, hint = with_silent(
                "the cluster is down" if not failed else "no head of a cluster was found",
                "run `hetero-tui up` first",
                failed,
            )
            raise UsageError(cause, step="ray", hint=hint)
        async with aclosing(rays_output(self._fleet.transports[head], self._fleet.cluster, words)) as lines:
            async for line in lines:
                yield line

    def _refuse_unknown(self, host: str, *, step: str) -> None:
        if self._fleet.inventory.host(host) is None:
            known = ", ".join(entry.name for entry in self._fleet.inventory.hosts)
            raise UsageError(f"no host {host!r} in the inventory", step=step, hint=f"hosts: {known}")

    def _refuse_server(self, host: str) -> None:
        entry = self._fleet.inventory.host(host)
        if entry is not None and entry.role == "server":
            raise UsageError(
                f"{host} has `role: server`: it holds weights, and has no worker that could leave the run",
                step="drain",
                hint=f"to continue without it: hetero-tui down, hetero-tui remove {host}, hetero-tui resume",
            )
