"""Hosts that a run does without are taken back, in the next run and after a teardown as well."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from hetero_tui import deadlines, events
from hetero_tui.commanding import Call
from hetero_tui.errors import ClusterError, RunError, RunStopped, TakenDown
from hetero_tui.fleet.bring_up import UpReport
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.inventory import Host, Inventory
from hetero_tui.launcher import open_session
from hetero_tui.narration import Output
from hetero_tui.runs import recovery as module
from hetero_tui.runs.failover import Formed
from hetero_tui.runs.recovery import FleetRecovery, LookingOn
from hetero_tui.runs.seen import Seen
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


async def test_why_a_host_is_not_taken_back_is_told_once_for_each_cause(tmp_path: Path) -> None:
    said = asyncio.Queue[str]()
    refused = asyncio.Queue[str]()
    for cause in ("one", "one", "two"):
        refused.put_nowait(cause)

    async def refuse(_: str) -> None:
        raise ClusterError(await refused.get(), step="up")

    watched = Watched(tmp_path)
    watched.fleet.emit = lambda event: said.put_nowait(event.text) if isinstance(event, events.Notice) else None
    watched.recovery._take_in = refuse
    watched.recovery.look_after(frozenset({HOST}))
    try:
        async with asyncio.timeout(PATIENCE):
            told = [await said.get(), await said.get()]
    finally:
        await watched.recovery.close()
        await watched.fleet.close()
    assert [text.rpartition(" ")[2] for text in told] == ["one", "two"]
    assert all(HOST in text for text in told)


async def test_a_host_that_was_missed_before_a_teardown_is_taken_back_after_it(watched: Watched) -> None:
    watched.recovery.look_after(frozenset({HOST}))
    assert await watched.next_taken_in() == HOST

    await watched.recovery.close()
    watched.recovery.look_after(frozenset({HOST}))
    assert await watched.next_taken_in() == HOST


async def test_a_host_that_was_back_and_is_missed_by_the_next_run_is_taken_back_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveFleet, "members", frozenset({HOST}))  # it is in the cluster once it was taken in
    watched.recovery.look_after(frozenset({HOST}))
    assert await watched.next_taken_in() == HOST
    await asyncio.sleep(0)  # nobody waits for it from now on

    watched.recovery.look_after(frozenset({HOST}))
    assert await watched.next_taken_in() == HOST


async def test_a_host_that_does_not_come_back_by_itself_after_all_is_taken_in(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "RECONNECT_FIRST", 0.01)
    answers = [True, True, False]

    async def is_member(_: str) -> bool:
        return answers.pop(0)

    monkeypatch.setattr(watched.recovery, "_is_member", is_member)
    monkeypatch.setattr(LiveFleet, "members", frozenset({HOST}))
    watched.recovery.look_after(frozenset({HOST}))
    assert await watched.next_taken_in() == HOST
    assert answers == []


async def test_a_host_that_is_missed_no_more_is_not_waited_for(watched: Watched) -> None:
    watched.recovery.look_after(frozenset({HOST}))
    watched.recovery.look_after(frozenset())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watched.taken_in.get(), 2.0)


async def test_no_host_is_taken_back_while_a_run_is_let_go_on(watched: Watched) -> None:
    """Each was looked at and started once more beside the new head, whose start took twice as long for it."""
    async with watched.recovery._working("resuming"):
        watched.recovery.look_after(frozenset({HOST}))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watched.taken_in.get(), 2.0)
    assert await watched.next_taken_in() == HOST


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


async def test_what_serves_metrics_only_looks(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(f"cluster: {{name: none-{secrets.token_hex(4)}}}\nhosts: {{{HOST}: {{connection: local}}}}\n")
    call = Call(path=path, output=Output(False, True), accept=False)
    async with asyncio.timeout(PATIENCE), call.session(narrate=False, stays=True) as session:
        assert isinstance(session._recovery, LookingOn)
    async with asyncio.timeout(PATIENCE), call.session(narrate=False) as session:
        assert not isinstance(session._recovery, LookingOn)  # `attach` and `train` let a run go on


@pytest.mark.parametrize("fails", [False, True])
async def test_a_run_goes_on_from_the_moment_when_there_is_a_head_and_the_others_join_meanwhile(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    fleet, recovery = watched.fleet, watched.recovery
    goes_on, has_formed = asyncio.Event(), asyncio.Event()
    report = UpReport(None, (HOST,), {})

    async def form(*arguments: Any) -> Formed:
        arguments[-1](Formed(HOST, (), {}, None))
        await goes_on.wait()  # the last host joins only after that
        has_formed.set()
        return Formed(HOST, (), {}, report)

    async def go_on() -> str:
        goes_on.set()
        if fails:
            raise RunError("it has no checkpoint", step="resume run")
        return HOST

    monkeypatch.setattr(module, "form_anew", form)
    async with asyncio.timeout(PATIENCE):
        forming = recovery._form_anew("run", fleet.transports, go_on)
        if fails:
            with pytest.raises(RunError, match="no checkpoint"):
                await forming
        else:
            assert await forming == HOST
    assert has_formed.is_set()
    assert fleet.report is report, "the cluster is formed all the same"


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


@pytest.mark.parametrize(
    ("state", "checkpoint", "said"),
    [
        (RunState.STOPPED, None, "text-1 was stopped .*start it anew"),
        (RunState.STOPPED, 2, "text-1 was stopped .*hetero-tui resume text-1"),
        (RunState.LOST, None, "it ended -> start it anew"),
        (RunState.LOST, 2, "only shows: `hetero-tui resume text-1`"),
    ],
)
async def test_what_only_shows_a_run_says_how_its_files_say_that_it_ended(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, state: RunState, checkpoint: int | None, said: str
) -> None:
    about = {"job": "text", "step": 0, "loss": None, "started": 1.0, "checkpoint": checkpoint}

    async def copies(*_: Any) -> Any:
        return ((HOST, protocol.RunSummary(id="text-1", state=state, **about)),)

    monkeypatch.setattr(module, "list_copies", copies)
    shows = LookingOn(watched.fleet, *[cast("Any", None)] * 4)
    with pytest.raises(RunError, match=said) as error:
        await shows.restart("text-1", "it ended")
    assert isinstance(error.value, RunStopped) is (state is RunState.STOPPED)


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
