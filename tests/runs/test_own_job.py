"""A job of one's own, with a module and data beside it, on machines that share no files."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from hetero_tui.demo.machines import EmbeddedMachines
from hetero_tui.inventory.file import load
from hetero_tui.runs.order import read_order
from hetero_tui.session import Session
from remote_agent import protocol

PATIENCE = 240.0

SCRIPT = """
import torch
from torch.utils.data import Dataset
import helper
from remote_agent.training import DistributedTrainer, TrainingConfig

class Points(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        x = torch.tensor([float(value) for value in open("data/points.txt").read().split()])
        return x + index / 64, helper.label(index)

class Factory:
    def create_model(self):
        return torch.nn.Linear(3, 2)

job = DistributedTrainer(
    model_factory=Factory(), data_loader=Points(), config=TrainingConfig(num_iterations=10**6, batch_size=16)
)
result = job.train()
print(1 / 0, result.final_loss)
"""
HELPER = "import threading\nLOCK = threading.Lock()\ndef label(index):\n    with LOCK:\n        return index % 2\n"


@pytest.mark.long
@pytest.mark.ray
async def test_its_files_are_where_it_runs_whoever_carries_it_out(machines: EmbeddedMachines, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/points.txt").write_text("1 2 3")
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "script.py").write_text(SCRIPT)
    order = read_order(str(tmp_path / "script.py"), (), [str(tmp_path / "data")])
    path = machines.write_inventory()
    async with asyncio.timeout(PATIENCE), Session(load(path), path, ledger_folder=tmp_path / "ledger") as session:
        try:
            await session.up()
            run = await session.launch(order)
            places = [
                machine.home / f".hetero-tui/{session.inventory.cluster}/runs/{run}" for machine in machines.machines
            ]
            async with aclosing(session.events_of(run)) as coming:
                await until(coming, protocol.Step)
                while not all((place / protocol.JOB_ARCHIVE).is_file() for place in places):
                    await until(coming, protocol.Step)  # whoever may become the head has it
                coordinator_of(places[0]).send_signal(signal.SIGKILL)
                await until(coming, protocol.RunResumed)
                await until(coming, protocol.Step)
                await session.stop_run()
                await until(coming, protocol.RunFinished)
            assert all((place / "job/data/points.txt").is_file() for place in places)
            assert await session.resume_run(run) == run
            async with aclosing(session.events_of(run)) as coming:
                # The first one is told again.
                await until(coming, protocol.RunResumed, protocol.RunResumed, protocol.Step)
                await session.stop_run()
                await until(coming, protocol.RunFinished)
        finally:
            report = await session.down()
    assert report.leftovers == ()


async def until(coming: AsyncIterator[tuple[str, protocol.Event]], *kinds: type[protocol.Event]) -> None:
    """Go on to an event of each kind, one after the other."""
    for kind in kinds:
        async for _, event in coming:
            assert not isinstance(event, protocol.RunFailed), event
            if isinstance(event, kind):
                break


def coordinator_of(place: Path) -> psutil.Process:
    """The process that coordinates the run in that folder: its overseer's child."""
    found = [
        process
        for process in psutil.process_iter()
        if process.status() != psutil.STATUS_ZOMBIE and str(place) in process.cmdline()[-1:]
    ]
    (child,) = [process for process in found if process.parent() in found]
    return child
