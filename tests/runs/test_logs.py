"""`hetero-tui logs`: what a run's processes logged, on all hosts, merged; a host that can't be asked costs one line."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hetero_tui import commanding, deadlines
from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import RunError, UsageError
from hetero_tui.events import ClusterState
from hetero_tui.fleet import agent
from hetero_tui.inventory.file import load
from hetero_tui.narration import Output
from hetero_tui.session import Session
from hetero_tui.transport import open_transport
from remote_agent.log_lines import stamp
from remote_agent.protocol import run_process_name
from tests.specs import write_run

RUN = "digits-1"
PATIENCE = 120.0

LOGS = {
    "fast": {
        "coordinator": [f"{stamp(10)} run_started run=digits-1", f"{stamp(30)} worker_lost worker=half/cpu"],
        "cpu": [f"{stamp(20)} epoch 1 \x1b[31mred"],
    },
    "half": {"cpu": [f"{stamp(15)} epoch 1", "Traceback", f"{stamp(40)} epoch 2"]},
    "quarter": {"cpu": [f"{stamp(25)} unseen"]},
}
MERGED = [
    "1970-01-01T00:00:10.000Z [fast/coordinator] run_started run=digits-1",
    "1970-01-01T00:00:15.000Z [half/cpu] epoch 1",
    "1970-01-01T00:00:15.000Z [half/cpu] Traceback",
    "1970-01-01T00:00:20.000Z [fast/cpu] epoch 1 red",
    "1970-01-01T00:00:30.000Z [fast/coordinator] worker_lost worker=half/cpu",
    "1970-01-01T00:00:40.000Z [half/cpu] epoch 2",
]


@asynccontextmanager
async def logged(machines: EmbeddedMachines) -> AsyncIterator[Session]:
    """A session on the machines, whose cluster is down; a run has left its logs there."""
    path = machines.write_inventory()
    inventory = load(path)
    for host in inventory.hosts:
        transport = open_transport(host, inventory)
        await agent.ship(transport, machines.cluster, sys.executable)
        await transport.close()
        place = machines.machine(host.name).home / agent.folder(machines.cluster) / "runs" / RUN
        place.mkdir(parents=True)
        for process, lines in LOGS[host.name].items():
            (place / f"{process}.log").write_text("".join(f"{line}\n" for line in lines))
        if host.name == "fast":
            write_run(place, "digits", host="fast", cluster=machines.cluster)
    async with Session(inventory, path, ledger_folder=machines.folder / "laptop", log_errors=False) as session:
        yield session


async def test_lines_of_all_hosts_are_merged_and_an_unreachable_one_costs_one_line(
    machines: EmbeddedMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    async with logged(machines) as session:
        await machines.unplug("quarter")
        code = await commanding.logs(session, Output(plain=True), RUN)
        out, err = capsys.readouterr()
        assert out.splitlines() == MERGED
        (line,) = err.splitlines()
        assert line.startswith("hetero-tui: quarter: ")
        assert code == 3


async def test_one_host_or_process_can_be_asked_for_and_scripts_get_json(
    machines: EmbeddedMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    async def printed(**options: str) -> list[str]:
        assert await commanding.logs(session, Output(as_json=True), None, **options) == 0
        return [json.loads(line)["line"] for line in capsys.readouterr().out.splitlines()]

    async with logged(machines) as session:
        assert await printed(host="quarter") == ["unseen"]
        assert await printed(worker="half/cpu") == ["epoch 1", "Traceback", "epoch 2"]
        assert await printed(worker="coordinator") == ["run_started run=digits-1", "worker_lost worker=half/cpu"]
        await commanding.logs(session, Output(as_json=True), RUN, "fast", "cpu")
        with pytest.raises(UsageError, match=r"no line of 'cqu'; did you mean 'cpu'\? -> there are lines of .*cpu"):
            await commanding.logs(session, Output(as_json=True), RUN, "fast", "cqu")
        document = {"time": 20.0, "host": "fast", "process": "cpu", "line": "epoch 1 red"}
        assert json.loads(capsys.readouterr().out) == document


async def test_runs_and_their_logs_are_there_after_down_and_until_the_next_up(
    machines: EmbeddedMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    async with logged(machines) as session:
        report = await session.down()
        assert report.leftovers == ()
        assert [summary.id for _, summary in await session.status()] == [RUN]
        assert await commanding.logs(session, Output(plain=True), RUN, "fast") == 0
        assert capsys.readouterr().out.splitlines() == [line for line in MERGED if "[fast/" in line]
        with pytest.raises(RunError, match="without a last word"):
            await commanding.follow(session, Output(plain=True), RUN)
        assert session.state.cluster_state is ClusterState.DOWN, "attaching started nothing"
        folder = machines.machine("fast").home / agent.folder(machines.cluster)
        shutil.rmtree(folder / "runs")
        await session.down()
        assert not folder.exists(), "without a run there is nothing to read, and nothing stays"


async def test_a_connection_that_breaks_while_a_run_is_followed_costs_no_line_and_none_comes_twice(
    machines: EmbeddedMachines, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "RUN_RESUMED", 1.0)
    out: list[str] = []

    async def until(text: str) -> None:
        while text not in "".join(out):
            out.append(capsys.readouterr().out)
            await asyncio.sleep(0.05)

    async with logged(machines) as session, asyncio.timeout(PATIENCE):
        head = machines.machine("fast").home / agent.folder(machines.cluster)
        half = machines.machine("half").home / agent.folder(machines.cluster) / "runs" / RUN / "cpu.log"
        coordinator = ("--folder", str(head), "--name", run_process_name(RUN), "--log", str(head / "sleep.txt"))
        transport = open_transport(session.inventory.hosts[0], session.inventory)
        words = ("host.processes", "launch", *coordinator, "--", "sleep", "600")
        assert await agent.call(transport, machines.cluster, *words, step="test") is not None
        following = asyncio.create_task(commanding.logs(session, Output(plain=True), RUN, follow=True))
        await until("epoch 2")
        await machines.unplug("half")
        with half.open("a") as file:
            file.write(f"{stamp(40)} epoch 2 as well\n{stamp(50)} epoch 3\n")
        await machines.plug_in("half")
        await until("epoch 3")
        words = ("host.processes", "stop", "--folder", str(head), "--name", run_process_name(RUN), "--grace", "5")
        await agent.call(transport, machines.cluster, *words, step="test")
        await following
        await transport.close()
    lines = [line for line in ("".join(out) + capsys.readouterr().out).splitlines() if "[half/cpu]" in line]
    assert [line.partition("] ")[2] for line in lines] == [
        *("epoch 1", "Traceback", "epoch 2", "epoch 2 as well", "epoch 3")
    ]
