"""The part of a session that gets machines ready: looking for what is wrong with them, and installing on them."""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tui.fleet.check import CheckReport
from hetero_tui.fleet.install.bootstrap import BootstrapReport
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.keeper import Keeper


class Installing(Keeper):
    """Operations on the hosts of ``_fleet`` that exclude the session's others."""

    _fleet: LiveFleet

    async def check(self) -> CheckReport:
        """Look for all that may keep machines from training well; nothing is changed."""
        async with self._exclusively("checking"):
            await self._fleet.look()
            return await self._fleet.check()

    async def bootstrap(self, sources: Sources, extras: Sequence[str] = ()) -> BootstrapReport:
        """Give every host that lacks one an environment that can train; ``extras`` are requirements of jobs besides."""
        async with self._exclusively("installing"), self._fleet.alone("bootstrap"):
            await self._fleet.look()
            return await self._fleet.bootstrap(sources, extras)

    async def _look(self, sources: Sources | None) -> None:
        """Look at all hosts; with ``sources`` those that lack an environment get one."""
        await self._fleet.look()
        if sources is not None:
            report = await self._fleet.bootstrap(sources, ())
            if any(installed.changed for installed in report.installed):
                await self._fleet.look()
