"""Takes README's picture of the app as it is: ``python -m benchmarks.picture``.

It trains on the demo's three machines with the app over them, breaks one (the demo's own chaos), and writes
``docs/fleet.svg`` once that one takes part again. What is shown is what was measured: nothing is drawn by hand.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from hetero_tui.demo.fleet import DemoFleet, demo_fleet
from hetero_tui.faults import LOST
from hetero_tui.state import RunView
from hetero_tui.ui.app import HeteroApp
from hetero_tui.ui.keys import QUIT_FOR_GOOD

PLACE = Path(__file__).parents[1] / "docs" / "fleet.svg"
SIZE = (120, 40)
SETTINGS = {"num_iterations": "4000"}
SOME_STEPS = 100
DEADLINE = 240.0
"""Seconds until the picture must be taken."""


async def picture() -> str:
    """The picture of a run with a fault that was mended, as SVG."""
    os.environ["TERM"] = "xterm-256color"
    async with demo_fleet(log_errors=True, chaos_pause=(1.0, 2.0)) as fleet:
        app = HeteroApp(
            fleet.session, on_start=("up", "train"), job="digits", settings=SETTINGS, quit_key=QUIT_FOR_GOOD
        )
        async with asyncio.timeout(DEADLINE), app.run_test(size=SIZE) as pilot:
            await _until(fleet, lambda run: run.step >= SOME_STEPS)
            await fleet.chaos.toggle()
            await _until(fleet, lambda run: any(fault.word == LOST for fault in run.faults))
            await fleet.chaos.toggle()
            await _until(fleet, lambda run: not run.paused_hosts)
            after = fleet.session.state.run.step if fleet.session.state.run is not None else 0
            await _until(fleet, lambda run: run.step >= after + SOME_STEPS)
            app.redraw()
            await pilot.pause()
            return app.export_screenshot(title="hetero-tui demo")


async def _until(fleet: DemoFleet, reached: Callable[[RunView], bool]) -> None:
    """Wait until the run is as far; the deadline is the caller's."""
    changed = asyncio.Event()
    unsubscribe = fleet.session.subscribe(lambda _: changed.set())
    try:
        while (run := fleet.session.state.run) is None or not reached(run):
            changed.clear()
            await changed.wait()
    finally:
        unsubscribe()


if __name__ == "__main__":
    PLACE.write_text(asyncio.run(picture()), encoding="utf-8")
    print(f"written to {PLACE}")
