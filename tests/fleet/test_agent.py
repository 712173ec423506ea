"""The agent gets to a host whole, also where several laptops send theirs at the same moment."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from hetero_tui import deadlines
from hetero_tui.fleet import agent
from hetero_tui.inventory import Host
from hetero_tui.transport.local import LocalTransport
from remote_agent.protocol import StopReport

SHIPPERS = 6


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_laptops_that_send_their_agent_at_once_leave_one_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    transport = LocalTransport(Host(name="nas", connection="local"))
    for first in (0, SHIPPERS):  # onto a host without one, and onto one with another
        pythons = [f"/python/{number}" for number in range(first, first + SHIPPERS)]
        await asyncio.gather(*(agent.ship(transport, "lab", python) for python in pythons))
        folder = tmp_path / agent.folder("lab")
        assert names_in(folder) == ["agent"]
        assert names_in(folder / "agent") == ["digest", "remote_agent", "run"]
        assert (folder / "agent" / "run").read_text().split("\npython=")[1].split()[0] in pythons


async def test_what_prints_lines_for_a_laptop_gets_signs_of_life_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(deadlines, "SIGN_OF_LIFE", 0.02)
    runner = tmp_path / agent.folder("lab") / "agent" / "run"
    runner.parent.mkdir(parents=True)
    runner.write_text("read first; echo heard; read second; echo heard\n")
    transport = LocalTransport(Host(name="nas", connection="local"))
    async with asyncio.timeout(20), agent.follow(transport, "lab", "sampling", step="watch") as lines:
        assert [line.raw async for line in lines] == ["heard", "heard"]


@pytest.mark.parametrize(
    ("breaks", "what"),
    [
        ("", "is gone"),
        ("#!/nonexistent/python3\n", "does not run"),
        ("#!/bin/sh\nkill -SEGV $$\n", "does not run"),
        ("#!/bin/sh\necho 'ModuleNotFoundError: No module named encodings' >&2; exit 1\n", "does not run"),
    ],
)
async def test_a_cluster_whose_python_was_removed_or_is_broken_can_be_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str, what: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    transport = LocalTransport(Host(name="nas", connection="local"))
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    await agent.ship(transport, "lab", str(python))
    python.unlink()
    if breaks:
        python.write_text(breaks)
        python.chmod(0o700)
    done = await agent.call(transport, "lab", "host.node", "stop", "--folder", agent.home_folder("lab"), step="stop")
    assert done is not None
    assert agent.answer(StopReport, "nas", done, step="stop") == StopReport()
    assert f"env/bin/python {what}, so python3" in done.stderr.raw
