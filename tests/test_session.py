"""The session says what is under way for as long as any of it is."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from hetero_tui import deadlines, events
from hetero_tui.errors import CoordinatorGone, RunError, TakenDown, UsageError
from hetero_tui.events import ClusterState
from hetero_tui.fleet.live import LiveFleet
from hetero_tui.inventory import Host, Inventory
from hetero_tui.runs.order import read_order
from hetero_tui.runs.recovery import FleetRecovery
from hetero_tui.session import Session
from hetero_tui.transport import Transport
from remote_agent import protocol
from remote_agent.states import RayState, RunState


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session on this computer, for a cluster that is not there."""
    inventory = Inventory(cluster=f"none-{secrets.token_hex(4)}", hosts=(Host(name="laptop", connection="local"),))
    return Session(inventory, tmp_path / "inventory.yaml", ledger_folder=tmp_path)


async def test_a_run_on_a_host_that_the_inventory_no_longer_has_is_stopped(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `remove` of the only host, `stop` said that there was no run."""
    state, stopped = [RunState.RUNNING], list[str]()

    async def runs(_: str, transports: Mapping[str, Transport], *__: object) -> object:
        there = [host for host, transport in transports.items() if transport.host == "gone"]
        run = protocol.RunSummary(id="text-1", job="text", state=state[0], step=3, loss=1.0, started=1.0, host="gone")
        return tuple((host, run) for host in there)

    async def stop(_: str, transport: Transport, run: str) -> None:
        state[0] = RunState.STOPPED
        stopped.append(f"{run} on {transport.host}")

    monkeypatch.setattr("hetero_tui.session.list_runs", runs)
    monkeypatch.setattr("hetero_tui.session.stop_run", stop)
    session._fleet.ledger.intend(Host(name="gone", connection="local"), "node")
    async with session:
        ended = await session.stop_run()
    assert (ended.id, ended.state, stopped) == ("text-1", RunState.STOPPED, ["text-1 on gone"])


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_lost_run_is_stopped_though_another_laptop_may_let_it_go_on(
    session: Session, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """It was said to be lost already, and went on a moment later."""
    state, done = [RunState.LOST], list[str]()

    async def runs(*_: object) -> object:
        return (
            ("laptop", protocol.RunSummary(id="text-1", job="text", state=state[0], step=3, loss=1.0, started=1.0)),
        )

    async def end(_: str, transports: Mapping[str, Transport], run: str) -> None:
        state[0] = RunState.STOPPED
        done.append(f"{run} ended on {', '.join(transports)}")

    async def stop(_: str, transport: Transport, run: str) -> None:
        state[0] = RunState.STOPPED
        done.append(f"{run} stopped on {transport.host}")

    @asynccontextmanager
    async def alone(*_: object) -> AsyncIterator[None]:
        if restarted:  # while this command waited for the other laptop's
            state[0] = RunState.RUNNING
        yield

    monkeypatch.setattr("hetero_tui.session.list_runs", runs)
    monkeypatch.setattr("hetero_tui.session.end_lost", end)
    monkeypatch.setattr("hetero_tui.session.stop_run", stop)
    monkeypatch.setattr(LiveFleet, "alone", alone)
    async with session:
        ended = await session.stop_run("text-1")
    assert ended.state == RunState.STOPPED
    assert done == ["text-1 stopped on laptop" if restarted else "text-1 ended on laptop"]


async def test_an_order_that_no_host_of_the_inventory_can_carry_out_contacts_none(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(session, "_look", look)
    monkeypatch.setattr(LiveFleet, "alone", lambda *_: nullcontext())
    with pytest.raises(UsageError, match="shards=2: there is 1 host in the inventory"):
        await session.launch(read_order("digits", {"shards": "2"}, ()))


async def test_a_drain_of_a_server_is_refused_since_it_has_no_worker(tmp_path: Path) -> None:
    nas = Host(name="nas", connection="local", role="server")
    inventory = Inventory(cluster=f"none-{secrets.token_hex(4)}", hosts=(nas,))
    async with Session(inventory, tmp_path / "inventory.yaml", ledger_folder=tmp_path) as session:
        with pytest.raises(UsageError, match="nas has `role: server`") as refused:
            await session.drain("nas")
    assert "hetero-tui remove nas" in refused.value.hint


async def test_a_teardown_ends_what_is_under_way_and_says_so(session: Session) -> None:
    async with session:

        async def stop() -> None:
            async with session._exclusively("stopping"):
                pass

        async def resume(begun: asyncio.Event) -> None:
            async with session._exclusively("resuming"):
                begun.set()
                await asyncio.Event().wait()

        begun = asyncio.Event()
        resuming = asyncio.create_task(resume(begun))
        await begun.wait()
        async with asyncio.timeout(10):
            await stop()
        with pytest.raises(TakenDown, match="the teardown ended this: resuming"):
            await resuming
        assert session.state.log[0].text == "the teardown ends this first: resuming"
        said = len(session.state.log)
        await stop()
        assert len(session.state.log) == said, "nothing was under way"


async def test_a_host_that_is_back_after_a_down_from_elsewhere_starts_no_cluster(session: Session) -> None:
    async with session:
        await session._take_in("laptop")
        assert session.up_report is None
        assert session.state.cluster_state is ClusterState.DOWN


async def test_a_run_that_another_terminal_starts_is_followed_once_its_host_says_so(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached: list[str] = []

    async def attach() -> None:
        attached.append("")

    async def sampled(run: str, epoch: int = 7) -> int:
        use = protocol.HostSample(
            time=1.0, cpu_use=None, memory_used=None, memory_total=None, ray=RayState.RUNNING, run=run, epoch=epoch
        )
        session.emit(events.HostSampled(time=1.0, host="laptop", sample=use))
        await asyncio.sleep(0)
        return len(attached)

    async with session:
        session.emit(events.ClusterChanged(time=1.0, state=ClusterState.UP, head="laptop"))
        monkeypatch.setattr(session, "_look_elsewhere", attach)
        assert await sampled("text-1") == 0, "a command that did not ask for it"
        session._elsewhere.is_wanted = True
        assert await sampled("") == 0
        with session._working("starting"):
            assert await sampled("text-1") == 0
        assert await sampled("text-1") == 1
        session.emit(events.RunChanged(time=1.0, run="text-1", job="text", state=RunState.RUNNING))
        assert await sampled("text-1") == 1
        session.emit(events.RunChanged(time=1.0, run="text-1", job="text", state=RunState.STOPPED))
        assert await sampled("text-1") == 1, "its coordinator is about to end"
        assert await sampled("text-2") == 2
        session._elsewhere._ended -= deadlines.RUN_RESUMED
        assert await sampled("text-1") == 3, "it was resumed elsewhere"
        session.emit(events.ClusterChanged(time=1.0, state=ClusterState.DOWN))
        assert await sampled("") == 3, "its other hosts are about to end"
        assert await sampled("", epoch=8) == 4, "a cluster was started elsewhere"


@pytest.mark.parametrize("checkpoint", [None, 2])
@pytest.mark.parametrize("state", [RunState.LOST, RunState.STOPPED, RunState.RUNNING])
async def test_a_run_that_was_lost_before_it_is_attached_to_is_not_started_again(
    session: Session, monkeypatch: pytest.MonkeyPatch, state: RunState, checkpoint: int | None
) -> None:
    """How it stands is what its files say, and only one that has a checkpoint can be resumed."""
    known = protocol.RunSummary(
        id="text-1", job="text", state=state, step=3, loss=1.0, started=1.0, host="laptop", checkpoint=checkpoint
    )
    restarted: list[str] = []

    async def find(*_: object) -> tuple[str, protocol.RunSummary]:
        return "laptop", known

    async def follow(*_: object, **__: object) -> AsyncIterator[None]:
        raise CoordinatorGone("text-1 ended without a last word", step="follow", hint="`hetero-tui resume text-1`")
        yield

    async def restart(_: object, run: str, cause: str) -> str:
        restarted.append(run)
        raise RunError(cause, step="resume run")

    monkeypatch.setattr("hetero_tui.following.find_run", find)
    monkeypatch.setattr("hetero_tui.runs.attending.follow", follow)
    monkeypatch.setattr(FleetRecovery, "restart", restart)
    async with session:
        with pytest.raises(RunError) as error:
            async for _ in session.events_of("text-1"):
                pass
    assert restarted == ([] if state.final else ["text-1"])
    assert ("hetero-tui resume" in str(error.value)) is (state.final and checkpoint is not None)
    assert ("hetero-tui train" in str(error.value)) is (state.final and checkpoint is None)
    assert ("stopped" in str(error.value)) is (state is RunState.STOPPED)
    assert session.state.run is not None
    assert session.state.run.state is (state if state.final else RunState.LOST)
