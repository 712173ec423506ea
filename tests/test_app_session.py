"""What the app's session adds to a session."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from hetero_tui import deadlines, events
from hetero_tui.app_session import AppSession
from hetero_tui.errors import RunError, Unreachable
from hetero_tui.events import ClusterState, HostState
from hetero_tui.fleet.probing import Probed
from hetero_tui.inventory import Host, Inventory
from hetero_tui.transport import shell_command
from remote_agent import protocol
from remote_agent.states import RunState

FLEET = Inventory(
    cluster="lab",
    hosts=(
        Host(name="mercer", address="10.0.0.2", user="me", port=2222, identity_file="/k"),
        Host(name="nas", address="nas.local", proxy_jump="mercer"),
        Host(name="laptop", connection="local"),
    ),
)


def test_a_shell_is_openssh_with_what_the_inventory_says() -> None:
    assert shell_command(FLEET.hosts[0], FLEET) == ("ssh", "-p", "2222", "-l", "me", "-i", "/k", "--", "10.0.0.2")
    assert shell_command(FLEET.hosts[1], FLEET) == ("ssh", "-J", "me@10.0.0.2:2222", "--", "nas.local")
    assert shell_command(FLEET.hosts[2], FLEET)[1:] == ("-l",)


async def test_what_is_saved_never_takes_the_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text-1.log").write_text("mine")
    async with AppSession(FLEET, tmp_path / "inventory.yaml", ledger_folder=tmp_path / "ledger") as session:
        assert await session.save("text-1.log", "ours") == str(tmp_path / "text-1-2.log")
        with pytest.raises(RunError, match="can't be written"):
            await session.save("no/folder.log", "ours")
    assert (tmp_path / "text-1.log").read_text() == "mine"
    assert (tmp_path / "text-1-2.log").read_text() == "ours\n"


async def test_a_machine_that_answers_again_does_not_wait_for_those_that_are_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()

    async def silent() -> None:
        await asyncio.Event().wait()

    async def answers() -> None:
        pass

    async def look_at(name: str) -> None:
        assert name == "nas"
        looked.set()

    monkeypatch.setattr(deadlines, "reconnect_pauses", lambda: itertools.repeat(0.0))
    async with AppSession(FLEET, tmp_path / "inventory.yaml", ledger_folder=tmp_path / "ledger") as session:
        for host, connect in (("mercer", silent), ("nas", answers)):
            monkeypatch.setattr(session._fleet.transports[host], "connect", connect)
            session.emit(events.HostLost(time=1.0, host=host, cause="no answer"))
        monkeypatch.setattr(session._fleet, "look_at", look_at)
        silence = Unreachable("", "no answer", step="connect")
        session._fleet.probed = tuple(Probed(host=host, error=silence) for host in ("mercer", "nas"))
        session._asking = asyncio.create_task(session._ask_again())
        await asyncio.wait_for(looked.wait(), 5)


async def test_a_session_on_a_file_that_was_read_again_goes_on_with_the_run_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run is newer, and the one that is watched stays on the screen."""
    moved = Inventory(cluster="lab", hosts=(Host(name="mercer", address="10.0.0.9"), *FLEET.hosts[1:]))
    runs = tuple(
        protocol.RunSummary(id=run, job="digits", state=RunState.RUNNING, step=1, loss=None, started=at, host="nas")
        for at, run in enumerate(("watched-1", "newer-2"))
    )
    followed = list[str]()

    async def listed(*_: Any) -> tuple[tuple[str, protocol.RunSummary], ...]:
        return tuple(("nas", run) for run in runs)

    def opened(inventory: Inventory) -> AppSession:
        session = AppSession(inventory, tmp_path / "inventory.yaml", ledger_folder=tmp_path / "ledger")
        monkeypatch.setattr(session, "_follow", followed.append)
        return session

    monkeypatch.setattr("hetero_tui.runs.listing.list_runs", listed)
    monkeypatch.setattr("hetero_tui.following.list_runs", listed)
    async with (
        opened(FLEET) as former,
        opened(moved) as session,
        opened(Inventory(cluster="other", hosts=FLEET.hosts)) as other,
    ):
        for host in ("mercer", "nas"):
            former.emit(events.HostChanged(host=host, state=HostState.UP))
        former.emit(events.ClusterChanged(state=ClusterState.UP, head="nas"))
        former.emit(events.RunChanged(run="watched-1", job="digits", state=RunState.RUNNING))
        session.go_on_from(former.state)
        assert (session.state.run, session.state.log) == (former.state.run, former.state.log)
        assert (session.state.head, session.state.cluster_state) == ("nas", ClusterState.UP)
        assert [host.state for host in session.state.hosts] == [HostState.UNKNOWN, HostState.UP, HostState.UNKNOWN]
        assert followed == ["watched-1"], "at once, not when the machines have been looked at"
        other.go_on_from(former.state)
        assert (other.state.run, other.state.log) == (None, ())
        await other._attach_to_live_run()
        assert followed == ["watched-1", "newer-2"]
