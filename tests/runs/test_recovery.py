"""Hosts that a run does without are taken back, in the next run and after a teardown as well."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from hetero_tui import events
from hetero_tui.errors import RunError, TakenDown
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.inventory import Host, Inventory
from hetero_tui.launcher import open_session
from hetero_tui.runs import recovery as module
from hetero_tui.runs.failover import Formed
from hetero_tui.runs.recovery import FleetRecovery
from hetero_tui.runs.watching import Seen
from remote_agent import protocol
from remote_agent.states import RunState

PATIENCE = 10.0
HOST = "laptop"


class Watched:
    """A recovery over this computer, for a cluster that is not there, and the hosts that it took in."""

    def __init__(self, folder: Path) -> None:
        inventory = Inventory(cluster=f"none-{secrets.token_hex(4)}", hosts=(Host(name=HOST, connection="local"),))
        self.fleet = LiveFleet(inventory, lambda _: None, ledger_folder=folder)
        self.taken_in = asyncio.Queue[str]()
        self.recovery = FleetRecovery(self.fleet, self._exclusively, lambda _: None, self._take_in)

    def _exclusively(self, _: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def _take_in(self, host: str) -> None:
        self.taken_in.put_nowait(host)

    async def next_taken_in(self) -> str:
        return await asyncio.wait_for(self.taken_in.get(), PATIENCE)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    await watched.recovery.close()
    await watched.fleet.close()


async def test_a_host_that_was_missed_before_a_teardown_is_taken_back_after_it(watched: Watched) -> None:
    watched.recovery.look_after(frozenset({HOST}))
    assert await watched.next_taken_in() == HOST

    await watched.recovery.close()
    watched.recovery.look_after(frozenset({HOST}))
    assert await watched.next_taken_in() == HOST


async def test_a_host_that_is_missed_no_more_is_not_waited_for(watched: Watched) -> None:
    watched.recovery.look_after(frozenset({HOST}))
    watched.recovery.look_after(frozenset())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watched.taken_in.get(), 2.0)


@pytest.mark.parametrize("way", ["fail over", "restart", "look after"])
async def test_a_session_that_only_shows_says_what_is_to_be_done_and_does_not_do_it(tmp_path: Path, way: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(f"cluster: {{name: none-{secrets.token_hex(4)}}}\nhosts: {{{HOST}: {{connection: local}}}}\n")
    session = open_session(path, readonly=True)
    async with session, asyncio.timeout(PATIENCE):
        before = {*asyncio.all_tasks()}
        recovery = session._recovery
        if way == "look after":
            recovery.look_after(frozenset({HOST}))
        else:
            with pytest.raises(RunError, match="only shows: `hetero-tui resume run`"):
                await (
                    recovery.fail_over("run", HOST, "it fell silent", Seen())
                    if way == "fail over"
                    else recovery.restart("run", "it ended")
                )
        assert {*asyncio.all_tasks()} == before


async def test_a_run_goes_on_in_a_cluster_that_another_laptop_formed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def there(*_: Any) -> Formed:
        return Formed(HOST, (), {}, None)

    async def go_on() -> str:
        return HOST

    monkeypatch.setattr(module, "form_anew", there)
    async with asyncio.timeout(PATIENCE):
        assert await watched.recovery._form_anew("run", watched.fleet.transports, go_on) == HOST


@pytest.mark.parametrize("way", ["fail over", "restart"])
async def test_a_run_that_was_stopped_from_another_laptop_does_not_go_on(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    watched.fleet.ledger.intend(watched.fleet.inventory.hosts[0], "node")  # this laptop has started the cluster

    async def copies(*_: Any) -> Any:
        about = {"job": "text", "step": 3, "loss": 1.0, "started": 1.0}
        ended = protocol.RunSummary(id="text-1", state=RunState.STOPPED, seq=9, **about)
        older = protocol.RunSummary(id="text-1", state=RunState.LOST, seq=8, **about)
        return ("b", older), (HOST, ended)

    monkeypatch.setattr(module, "list_copies", copies)
    monkeypatch.setattr(module, "is_taken_down", lambda _: False)
    async with asyncio.timeout(4 * PATIENCE):
        with pytest.raises(TakenDown, match="text-1 was stopped before it could go on"):
            await (
                watched.recovery.fail_over("text-1", "gone", "it fell silent", Seen())
                if way == "fail over"
                else watched.recovery.restart("text-1", "it ended")
            )


@pytest.mark.parametrize("way", ["fail over", "restart"])
async def test_a_run_goes_on_only_after_the_command_of_another_laptop(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Two that form a cluster, or one that does and one that takes it down, would undo each other's work."""
    monkeypatch.setenv("HOME", str(tmp_path))
    fleet, recovery = watched.fleet, watched.recovery
    fleet.ledger.intend(fleet.inventory.hosts[0], "node")  # this laptop has started the cluster
    told = asyncio.Queue[str]()
    monkeypatch.setattr(
        fleet, "emit", lambda event: told.put_nowait(event.text) if isinstance(event, events.Notice) else None
    )
    other = LiveFleet(fleet.inventory, lambda _: None, ledger_folder=tmp_path / "other")
    async with asyncio.timeout(4 * PATIENCE):
        async with other.alone("down"):
            going = asyncio.create_task(
                recovery.fail_over("run", "gone", "it fell silent", Seen())
                if way == "fail over"
                else recovery.restart("run", "it ended")
            )
            while "`down` of this laptop is changing this cluster" not in await told.get():
                pass
            assert not going.done()
        with pytest.raises(TakenDown):  # what it finds then: a cluster that was taken down
            await going
    await other.close()
