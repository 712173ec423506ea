"""A whole fleet for a look: embedded machines, a session on them, and a teardown however it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from hetero_tui.app_session import AppSession
from hetero_tui.demo.chaos import PAUSE_SECONDS, Chaos
from hetero_tui.demo.guardian import guarded
from hetero_tui.demo.machines import EmbeddedMachines, make_folder
from hetero_tui.errors import UsageError
from hetero_tui.intents import TeardownReport
from hetero_tui.inventory.file import load

WATCHED = {"num_iterations": "1000", "batch_size": "1024"}
"""Of the ready job's run in the app: some minutes, in which the key ``x`` breaks machines, and so much work in a step
that it pays for all three."""

NEEDED = ("ray", "torch", "safetensors", "sklearn", "psutil")


class DemoFleet:
    """The demo's session, what breaks its machines, and after the context the report of its teardown."""

    def __init__(self, session: AppSession, chaos: Chaos) -> None:
        """``chaos`` is off. ``report`` is None until the fleet is torn down."""
        self.session = session
        self.chaos = chaos
        self.report: TeardownReport | None = None


@asynccontextmanager
async def demo_fleet(*, log_errors: bool, chaos_pause: tuple[float, float] = PAUSE_SECONDS) -> AsyncIterator[DemoFleet]:
    """Three machines and a session on them. Leaving the context tears down through the product's own ``down``.

    What even that can't do (a SIGKILL of this process) the guardian does. ``chaos_pause``: see :class:`Chaos`.

    Raises:
        UsageError: this Python lacks what the machines, which share it, need.
    """
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise UsageError(
            f"the demo trains on this computer, and its Python has no {', '.join(missing)}",
            step="demo",
            hint="run `make demo`, or `pip install 'hetero-tui[node]'`",
        )
    folder = make_folder()
    async with guarded(folder), EmbeddedMachines(folder) as machines:
        path = machines.write_inventory()
        session = AppSession(load(path), path, ledger_folder=folder / "laptop", log_errors=log_errors)
        async with session:
            homes = {machine.name: machine.home for machine in machines.machines}
            chaos = Chaos(homes, head=machines.machines[0].name, session=session, pause=chaos_pause)
            fleet = DemoFleet(session, chaos)
            try:
                yield fleet
            finally:
                try:
                    await chaos.close()
                finally:
                    fleet.report = await session.down()
