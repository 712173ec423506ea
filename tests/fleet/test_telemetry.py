"""Live use of a host on which nothing of ours is."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from hetero_tui import events
from hetero_tui.fleet import telemetry
from hetero_tui.inventory import Host, Inventory
from hetero_tui.transport import open_transport


async def test_a_host_without_our_agent_says_its_use_and_no_file_of_ours_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    host = Host(name="laptop", connection="local")
    transport = open_transport(host, Inventory(cluster="none", hosts=(host,)))
    come: asyncio.Queue[events.Event] = asyncio.Queue()
    pythons = ("python-that-is-not-there", sys.executable)
    watching = asyncio.create_task(telemetry.watch("none", transport, come.put_nowait, pythons))
    try:
        async with asyncio.timeout(60):
            while not isinstance(event := await come.get(), events.HostSampled):
                pass
        assert event.sample.memory_total
        assert list(tmp_path.iterdir()) == []
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await transport.close()
