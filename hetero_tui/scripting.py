"""The part of a session that hands the cluster to Ray itself; scripts are started as runs are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from hetero_tui.errors import UsageError
from hetero_tui.fleet.survey import head_name
from hetero_tui.installing import Installing
from hetero_tui.runs.listing import find_run
from hetero_tui.runs.script import rays_output, refuse_ours
from hetero_tui.text import HostText
from remote_agent import protocol


class Scripting(Installing):
    """What concerns scripts and Ray's own command line."""

    async def find(self, run: str | None) -> tuple[str, protocol.RunSummary]:
        """The host and how it stands, of a run (None: the newest); RunError: there is no such run."""
        with self._working("looking for the run"):
            return await find_run(self._fleet.cluster, self._fleet.transports, run)

    async def rays_own(self, words: Sequence[str]) -> AsyncGenerator[HostText]:
        """Lines of what Ray's own command line says on the head.

        Raises:
            UsageError: the cluster is down, or the command is not for a cluster of ours.
            HostError: Ray says that it failed, or the head can't be asked.
        """
        refuse_ours(words)
        async with self._exclusively("asking"):
            await self._fleet.survey()
        head = head_name(self._fleet.surveyed)
        if head is None:
            raise UsageError("the cluster is down", step="ray", hint="run `hetero-tui up` first")
        async with aclosing(rays_output(self._fleet.transports[head], self._fleet.cluster, words)) as lines:
            async for line in lines:
                yield line
