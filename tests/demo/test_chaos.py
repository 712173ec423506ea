"""Chaos strikes processes of the demo and nobody else's, spares the last machine, and the run does not mind."""

import asyncio
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hetero_tui import commanding
from hetero_tui.demo.chaos import Blow, Chaos, Target, choose, look
from hetero_tui.demo.fleet import demo_fleet
from hetero_tui.errors import HostError
from hetero_tui.events import Level
from hetero_tui.narration import Output
from hetero_tui.runs.order import read_order
from hetero_tui.state import RunView, State, WorkerView, initial
from remote_agent import protocol
from remote_agent.protocol import CLUSTER_MARK
from remote_agent.states import RunState
from tests.test_demo import folders, marked_processes

PATIENCE = 60.0
BATCH = 64


def target(name: str, *, head: bool = False, trains: bool = True) -> Target:
    workers = (psutil.Process(),) if trains else ()
    return Target(name=name, head=head, workers=workers, ray=workers)


def test_the_last_machine_that_trains_and_the_heads_ray_are_spared() -> None:
    chance = random.Random(3)
    assert choose([], chance) is None
    assert choose([target("fast", head=True), target("half", trains=False)], chance) is None
    targets = [target("fast", head=True), target("half"), target("quarter", trains=False)]
    chosen = {(blow, hit.name) for blow, hit in filter(None, (choose(targets, chance) for _ in range(200)))}
    assert chosen == {(blow, name) for blow in Blow for name in ("fast", "half")} - {(Blow.KILL_RAY, "fast")}


class Looked:
    """What chaos needs of a session: a run that goes on with these hosts, and a log."""

    def __init__(self, *hosts: str) -> None:
        workers = tuple(
            WorkerView(worker=f"{host}/cpu", host=host, device="cpu", samples=8, fraction=0.5) for host in hosts
        )
        run = RunView(run="digits-1", job="digits", state=RunState.RUNNING, step=3, workers=workers)
        self.state: State = replace(initial("demo", ()), run=run)
        self.log: list[str] = []
        self.said = asyncio.Event()

    def notice(self, level: Level, text: str) -> None:
        self.log.append(text)
        self.said.set()

    async def until(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(text in line for line in self.log):
                self.said.clear()
                await self.said.wait()


def is_itself(started: subprocess.Popen[bytes]) -> bool:
    """Whether bash has become the program; on the way there the kernel shows neither words nor environment."""
    process = psutil.Process(started.pid)
    words = process.cmdline()
    return bool(words) and words[0] != "bash" and CLUSTER_MARK in process.environ()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Processes that look like what runs on two machines of a demo, and one of somebody else's."""
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sleep")
    processes = {}
    for name, home, command in (
        ("worker of fast", "fast", "exec -a ray::Worker.step sleep 60"),
        ("raylet of fast", "fast", f"exec {raylet} 60"),
        ("worker of half", "half", "exec -a ray::Worker sleep 60"),
        ("raylet of half", "half", f"exec {raylet} 60"),
        ("another tool's", "../else", "exec -a ray::Worker sleep 60"),
    ):
        mark = os.path.normpath(tmp_path / "demo" / home / ".hetero-tui" / "demo")
        processes[name] = subprocess.Popen(["bash", "-c", command], env={**os.environ, CLUSTER_MARK: mark})
    end = time.monotonic() + PATIENCE
    while not all(map(is_itself, processes.values())):
        assert time.monotonic() < end
        time.sleep(0.01)
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()


def test_a_machines_workers_and_ray_are_found_by_its_own_mark(
    tmp_path: Path, started: dict[str, subprocess.Popen[bytes]]
) -> None:
    seen = look("half", tmp_path / "demo" / "half", head=False)
    assert [process.pid for process in seen.workers] == [started["worker of half"].pid]
    assert [process.pid for process in seen.ray] == [started["raylet of half"].pid]
    pid = started["worker of half"].pid
    psutil.Process(pid).suspend()
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)  # the signal is on its way until then
    assert look("half", tmp_path / "demo" / "half", head=False).workers == ()


async def test_what_is_done_is_said_and_nobody_elses_process_is_touched(
    tmp_path: Path, started: dict[str, subprocess.Popen[bytes]]
) -> None:
    looked = Looked("fast", "half")
    homes = {name: tmp_path / "demo" / name for name in ("fast", "half")}
    chaos = Chaos(homes, head="fast", session=looked, chance=random.Random(1), pause=(0.0, 0.01))
    await chaos.toggle()
    await looked.until("killed")
    await asyncio.sleep(0.5)  # it goes on for as long as two machines are left
    await chaos.toggle()
    assert not chaos.on
    for line in looked.log:
        if "killed the worker of" in line:
            started[f"worker of {line.split()[-1]}"].wait(PATIENCE)  # the signal is on its way until then
        elif "killed all of Ray on" in line:
            started[f"raylet of {line.split()[-1]}"].wait(PATIENCE)
    assert (looked.log[0].startswith("chaos: on"), looked.log[-1]) == (True, "chaos: off")
    ended = {name for name, process in started.items() if process.poll() is not None}
    assert {name.split()[-1] for name in ended} == {line.split()[-1] for line in looked.log if "killed" in line}
    assert len(ended & {"worker of fast", "worker of half"}) < 2
    assert "another tool's" not in ended
    assert "raylet of fast" not in ended


async def test_a_worker_that_it_stopped_goes_on_when_chaos_ends(
    tmp_path: Path, started: dict[str, subprocess.Popen[bytes]]
) -> None:
    class Freezing(random.Random):
        def choice(self, options):  # type: ignore[no-untyped-def]
            return Blow.FREEZE_WORKER if Blow.FREEZE_WORKER in options else options[0]

    looked = Looked("fast", "half")
    homes = {name: tmp_path / "demo" / name for name in ("fast", "half")}
    chaos = Chaos(homes, head="fast", session=looked, chance=Freezing(), pause=(0.0, 0.01))
    await chaos.toggle()
    await looked.until("stopped the worker of fast")
    worker = psutil.Process(started["worker of fast"].pid)
    await asyncio.to_thread(os.waitid, os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    await chaos.close()
    assert worker.status() != psutil.STATUS_STOPPED


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


@pytest.mark.long
@pytest.mark.ray
async def test_the_demo_recovers_counts_every_sample_once_logs_what_was_decided_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_job.py").write_text(JOB)
    order = read_order(f"{tmp_path}/my_job.py:Job", {"num_iterations": "1000000", "batch_size": str(BATCH)})
    before, events, failed, killed = folders(), list[protocol.Event](), list[HostError](), list[psutil.Process]()

    async def follow(run: str) -> list[str]:
        return [entry.line.line async for entry in session.logs_of(run, follow=True, failed=failed.append)]

    async with asyncio.timeout(4 * PATIENCE), demo_fleet(log_errors=False, chaos_pause=(1.0, 2.0)) as fleet:
        session = fleet.session
        await session.up()
        run = await session.launch(order)
        stopping: asyncio.Task[None] | None = None
        lost = joined = 0
        async for _, event in session.events_of(run):
            events.append(event)
            lost += isinstance(event, protocol.WorkerLost)
            joined += isinstance(event, protocol.WorkerJoined)
            struck = [line for line in session.state.log if line.text.startswith(tuple(f"chaos: {b}" for b in Blow))]
            if not killed and isinstance(event, protocol.Step) and event.step > 5:
                killed += look("half", fleet.chaos._homes["half"], head=False).workers
                following = asyncio.create_task(follow(run))
                for process in killed:
                    process.kill()
            elif killed and joined == 4 and not fleet.chaos.on and not struck:
                await fleet.chaos.toggle()
            if stopping is None and len(struck) >= 3 and lost > 1 and isinstance(event, protocol.Step):
                await fleet.chaos.close()
                stopping = asyncio.create_task(session.stop_run())
        assert stopping is not None
        await stopping
        followed = await following
        assert await commanding.logs(session, Output(plain=True), run) == 0
        lines = capsys.readouterr().out.splitlines()
        ours = folders() - before
    assert fleet.report is not None
    assert fleet.report.leftovers == ()
    finished = events[-1]
    assert isinstance(finished, protocol.RunFinished)
    steps = [event for event in events if isinstance(event, protocol.Step)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [step.step for step in steps] == list(range(1, finished.steps + 1))
    assert all(step.samples == BATCH for step in steps)
    assert finished.samples == finished.steps * BATCH
    assert marked_processes(ours) == []
    assert not (folders() & ours)

    def has(*parts: str) -> Callable[[str], bool]:
        return lambda line: all(part in line for part in parts)

    assert any("takes part" in line for line in followed)
    assert any("run_finished" in line for line in followed)
    assert failed == []
    assert lines == sorted(lines, key=lambda line: line.split()[0])
    for wanted in (
        has("[fast/coordinator]", "data is made"),
        has("[half/cpu]", "first loss"),
        has("[fast/coordinator]", "membership: step", "half/cpu", "Died", "Restart"),
        has("[fast/coordinator]", "worker_lost", "half/cpu"),
        has("[fast/coordinator]", "worker_joined", "half/cpu"),
        has("[fast/coordinator]", "run_finished"),
    ):
        assert any(map(wanted, lines)), (wanted, "\n".join(lines))
