"""How much a command that asks once asks of each host: with dozens of them, every question counts."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.transport.processes import Spawned, spawn


async def test_probe_asks_each_host_what_it_is_and_what_of_ours_is_there_and_starts_nothing_else(
    machines: EmbeddedMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[Path] = Counter()

    def counted(words: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> AbstractAsyncContextManager[Spawned]:
        asked[cwd] += 1
        return spawn(words, cwd=cwd, env=env)

    monkeypatch.setattr("hetero_tui.demo.session.spawn", counted)
    home = machines.folder / "laptop"
    home.mkdir()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hetero_tui", "--inventory", str(machines.write_inventory()), "probe", "--json"),
        env=dict(os.environ) | {"HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await asyncio.wait_for(process.wait(), 60) == 0
    assert asked == {machine.home: 2 for machine in machines.machines}
