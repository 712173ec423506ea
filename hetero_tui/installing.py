"""The part of a session that gets machines ready: looking for what is wrong with them, and installing on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetero_tui.errors import UsageError
from hetero_tui.fleet.install.requirements import refuse, words
from hetero_tui.fleet.install.sources import Sources
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.fleet.survey import head_name
from hetero_tui.keeper import Keeper
from hetero_tui.outcomes import BootstrapReport, CheckReport


class Installing(Keeper):
    """Operations on the hosts of ``_fleet`` that exclude the session's others."""

    _fleet: LiveFleet

    def accept_host_key(self, host: str, fingerprint: str | None = None) -> None:
        """Trust the key that ``host`` offered; it is probed again by the next :meth:`probe`.

        Raises:
            UsageError: it offered none, or now another one than that with the ``fingerprint`` that the user saw.
        """
        if not self._fleet.transports[host].accept_offered_key(fingerprint):
            raise UsageError(f"{host} shows no new key, or another one than that; look at it again", step="host key")

    async def look(self) -> None:
        """Probe all hosts and ask what of ours is there."""
        async with self._exclusively("probing"):
            await self._fleet.look()

    async def check(self, sources: Sources | None = None) -> CheckReport:
        """Look for all that may keep machines from training well.

        Nothing is changed, but with ``sources`` environments of ours that do not work are made anew, and looked at
        again.
        """
        async with self._exclusively("checking" if sources is None else "mending"):
            await self._fleet.look()
            report = await self._fleet.check()
            if sources is not None and report.broken:
                async with self._fleet.alone("check"):
                    await self._fleet.bootstrap(sources, (), report.broken)
                await self._fleet.look()
                report = await self._fleet.check()
            return report

    async def bootstrap(self, sources: Sources, extras: Sequence[str] = ()) -> BootstrapReport:
        """Give every host that lacks one an environment that can train; ``extras`` are requirements of jobs besides."""
        async with self._exclusively("installing"), self._fleet.alone("bootstrap"):
            await self._fleet.look(installs=True)
            return await self._fleet.bootstrap(sources, extras)

    async def _look(
        self,
        sources: Sources | None,
        requirements: Sequence[str] = (),
        asks: Callable[[str], bool] | None = None,
        of_head: Sequence[str] = (),
    ) -> None:
        """Look at all hosts, which are locked; with ``sources`` those that lack an environment, or packages, get it.

        Without ``sources``, ``asks`` may agree to it once it is known what is missing.

        Raises:
            ClusterError: a host that is fit for the cluster lacks some of the ``requirements``, or the head some
                ``of_head``; or the cluster of this name is another inventory's.
        """
        self._fleet.refuse_name_of_another()
        await self._fleet.look(installs=sources is not None)
        lacks = await self._fleet.lacking(requirements, of_head)
        if sources is None and any(not lack.python for lack in lacks) and asks is not None:
            where = "install it in hetero-tui's environments there?"
            sources = Sources() if asks(f"{words(lacks)}; {where}") else None
        if sources is not None:
            # A cluster that runs, and has what is needed, is left as it is.
            is_needed = lacks or head_name(self._fleet.surveyed) is None
            report = await self._fleet.bootstrap(sources, (*requirements, *of_head) if is_needed else ())
            if any(installed.changed for installed in report.installed):
                await self._fleet.look()
            for error in report.failed.values():
                if lacks and error.host in {lack.host for lack in lacks}:
                    raise error
            lacks = await self._fleet.lacking(requirements, of_head)
        refuse(lacks)
