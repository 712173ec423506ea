"""`hetero-tui logs`: what a run's processes logged, on all hosts, merged; a host that can't be asked costs one line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from hetero_tui import commanding
from hetero_tui.demo.chaos import look
from hetero_tui.demo.fleet import demo_fleet
from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.errors import HostError, RunError, UsageError
from hetero_tui.fleet import agent
from hetero_tui.inventory.file import load
from hetero_tui.narration import Output
from hetero_tui.runs.order import read_order
from hetero_tui.session import Session
from hetero_tui.transport import open_transport
from remote_agent import protocol
from remote_agent.log_lines import stamp
from remote_agent.protocol import RunSpec, encode

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
            spec = RunSpec(
                run=RUN,
                job="digits",
                cluster=machines.cluster,
                host="fast",
                ray_address="127.0.0.2:1",
                node_address="127.0.0.2",
                devices=(),
                server_host="fast",
            )
            (place / "run.json").write_text(encode(spec))
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
        document = {"time": 20.0, "host": "fast", "process": "cpu", "line": "epoch 1 red"}
        assert json.loads(capsys.readouterr().out) == document


async def test_following_a_run_that_is_over_ends_with_what_is_there(
    machines: EmbeddedMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    async with logged(machines) as session, asyncio.timeout(PATIENCE):
        assert await commanding.logs(session, Output(plain=True), RUN, follow=True) == 0
        assert [line for line in capsys.readouterr().out.splitlines() if "quarter" not in line] == MERGED
        await commanding.logs(session, Output(plain=True), RUN, "quarter", follow=True)
        assert capsys.readouterr().out == "1970-01-01T00:00:25.000Z [quarter/cpu] unseen\n"


async def test_an_unknown_run_or_host_is_an_error_that_names_those_that_there_are(machines: EmbeddedMachines) -> None:
    async with logged(machines) as session:
        with pytest.raises(RunError, match="digits-1"):
            await commanding.logs(session, Output(plain=True), "digits-2")
        with pytest.raises(UsageError, match="fast, half, quarter"):
            await commanding.logs(session, Output(plain=True), RUN, "fats")


JOB = """
import torch
from torch.utils.data import TensorDataset

SIZE = 4096

class Job:
    def create_model(self):
        return torch.nn.Linear(8, 1)

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate)

    def create_data(self):
        print("data is made")
        inputs = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(1))
        return TensorDataset(inputs, inputs.sum(1, keepdim=True))

    def loss(self, model, batch):
        if not hasattr(self, "said"):
            self.said = print("first loss")
        inputs, targets = batch
        return torch.nn.functional.mse_loss(model(inputs), targets)
"""


@pytest.mark.ray
async def test_a_killed_workers_run_logs_what_was_decided_beside_what_the_workers_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_job.py").write_text(JOB)
    order = read_order(f"{tmp_path}/my_job.py:Job", {"num_iterations": "1000000", "batch_size": "64"})

    async def follow(run: str) -> list[str]:
        return [entry.line.line async for entry in session.logs_of(run, follow=True, failed=failed.append)]

    failed: list[HostError] = []

    def has(*parts: str) -> Callable[[str], bool]:
        return lambda line: all(part in line for part in parts)

    async with asyncio.timeout(2 * PATIENCE), demo_fleet(log_errors=False) as fleet:
        session = fleet.session
        await session.up()
        run = await session.launch(order)
        home = fleet.chaos._homes["half"]
        stopping: asyncio.Task[None] | None = None
        killed: list[psutil.Process] = []
        joined = 0
        async for _, event in session.events_of(run):
            joined += isinstance(event, protocol.WorkerJoined)
            if isinstance(event, protocol.Step) and event.step > 5 and not killed:
                killed += look("half", home, head=False).workers
                following = asyncio.create_task(follow(run))
                for process in killed:
                    process.kill()
            if killed and joined == 4 and stopping is None:
                stopping = asyncio.create_task(session.stop_run())
        assert stopping is not None
        await stopping
        followed = await following
        assert await commanding.logs(session, Output(plain=True), run) == 0
        lines = capsys.readouterr().out.splitlines()
    assert any("takes part" in line for line in followed)
    assert any("run_finished" in line for line in followed)
    assert failed == []
    assert lines == sorted(lines, key=lambda line: line.split()[0])
    for wanted in (
        has("[fast/coordinator]", "data is made"),
        has("[fast/cpu]", "first loss"),
        has("[half/cpu]", "first loss"),
        has("[half/cpu]", "served: joined over", "shards: 1"),
        has("[fast/server]", "serves shard 1 of 1"),
        has("[fast/coordinator]", "membership: step", "half/cpu", "Died", "Restart"),
        has("[fast/coordinator]", "worker_lost", "half/cpu"),
        has("[fast/coordinator]", "half/cpu is started, attempt 1"),
        has("[fast/coordinator]", "worker_joined", "half/cpu"),
        has("[fast/coordinator]", "run_finished"),
        has("/supervisor]", "watching Ray"),
    ):
        assert any(map(wanted, lines)), (wanted, "\n".join(lines))
