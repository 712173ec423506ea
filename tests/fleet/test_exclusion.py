"""Two commands that change one cluster, from one laptop or two: the second waits, and nothing blocks it for long."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.fleet.exclusion import alone
from hetero_tui.inventory import Inventory
from hetero_tui.inventory.file import load
from hetero_tui.transport import open_transport

WITHIN = 30.0


@asynccontextmanager
async def laptop(inventory: Inventory, said: list[str], command: str = "up") -> AsyncIterator[None]:
    """One command, with connections of its own."""
    transports = {host.name: open_transport(host, inventory) for host in inventory.hosts}
    try:
        async with alone(inventory, transports, command, said.append):
            yield
    finally:
        await asyncio.gather(*(transport.close() for transport in transports.values()))


def left(machines: EmbeddedMachines) -> list[Path]:
    return [path for machine in machines.machines for path in machine.home.glob(".hetero-tui/*.lock")]


async def test_the_second_waits_for_the_first_and_says_so(machines: EmbeddedMachines) -> None:
    inventory = load(machines.write_inventory())
    order: list[str] = []
    second_waits = asyncio.Event()

    class Said(list[str]):
        def append(self, text: str) -> None:
            super().append(text)
            second_waits.set()

    said = Said()

    async def second() -> None:
        async with laptop(inventory, said, "down"):
            order.append("second")

    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group, laptop(inventory, order):
        group.create_task(second())
        await second_waits.wait()
        order.append("first")
    assert order == ["first", "second"]
    assert said == ["`up` of this laptop is changing this cluster; this command waits for it"]
    assert left(machines) == []


async def test_two_inventories_with_other_names_in_another_order_never_wait_for_each_other(
    machines: EmbeddedMachines,
) -> None:
    inventory = load(machines.write_inventory())
    names = ("x", "y", "z")
    other = [
        host.model_copy(update={"name": name}) for host, name in zip(reversed(inventory.hosts), names, strict=True)
    ]
    renamed = inventory.model_copy(update={"hosts": tuple(other), "head": None})
    inside = 0

    async def often(which: Inventory) -> None:
        nonlocal inside
        for _ in range(3):
            async with laptop(which, []):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.01)
                inside -= 1

    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
        group.create_task(often(inventory))
        group.create_task(often(renamed))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_laptop_that_is_killed_or_falls_silent_does_not_block_the_next(
    machines: EmbeddedMachines, end: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = machines.write_inventory()
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom hetero_tui import deadlines\n"
        "from hetero_tui.inventory.file import load\nfrom tests.fleet.test_exclusion import laptop\n"
        "deadlines.HOLD_SILENCE = 2.0\n"
        "async def hold():\n  async with laptop(load(Path(sys.argv[1])), []):\n"
        "    print('in', flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(hold())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "in\n"
        holder.send_signal(end)
        try:
            async with asyncio.timeout(WITHIN), laptop(load(path), []):
                pass
        finally:
            holder.kill()
    assert left(machines) == []
