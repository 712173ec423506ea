"""A model trains whose training needs twice the memory that any of the processes may take; one process alone fails."""

from __future__ import annotations

import multiprocessing
import re
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from remote_agent.planning import cuts
from remote_agent.planning.blocks import need
from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import TrainingState
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.shared import without_compiler
from remote_agent.training.shared.messages import Slice
from remote_agent.training.shared.stages import StageRole, StageTask, commit_of, micro_batch
from remote_agent.training.wire.stage_links import StageLinks
from remote_agent.training.worker.device import backend
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.trained import TrainedParameters
from remote_agent.training.worker.staging import BlockProfiler, stage_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux limits a process's data (setrlimit)"),
]

WIDTH, BLOCKS, STEPS, STAGES = 3072, 15, 4, 3
PARAMETERS = BLOCKS * WIDTH * WIDTH
NEEDED = 4 * 4 * PARAMETERS
"""Bytes of weights, gradients and Adam's two numbers; activations come on top."""

LIMIT = NEEDED // 2
ROOM = 0.8 * LIMIT
"""What a stage is planned to take of that; the rest is for Python's and torch's own."""

ANSWER_S = 120.0
CONFIG = TrainingConfig(strategy="pipeline", num_iterations=STEPS, batch_size=64, micro_batch=16, seed=3)
SETTLED = replace(CONFIG, loss_reduction="mean")


class Wide:
    """Square layers, trained to give what they get."""

    def __init__(self, blocks: int = BLOCKS) -> None:
        self._blocks = blocks

    def create_model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(self._blocks)))

    def create_optimizer(self, model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4)

    def create_data(self) -> Tensor:
        return torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(0))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - batch).square().mean()


def _status(name: str) -> int:
    (found,) = re.findall(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found) * 1024


@contextmanager
def _limited() -> Iterator[dict[str, int]]:
    """This process may take so much more than it has now; says at the end how much it took at most."""
    torch.set_num_threads(1)
    threading.stack_size(1 << 20)  # the limit counts what a thread may take of its stack, not what it takes
    without_compiler.install()
    _profiled(Wide(2))  # what torch loads and keeps for itself is no part of the plan
    backend.CPU.release()
    data, before = _status("VmData"), _status("RssAnon")
    resource.setrlimit(resource.RLIMIT_DATA, (data + LIMIT, data + LIMIT))
    taken, stop = {"most": 0}, threading.Event()

    def watch() -> None:
        while not stop.wait(0.002):
            taken["most"] = max(taken["most"], _status("RssAnon") - before)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    yield taken
    stop.set()
    watching.join()


def _profiled(factory: Wide) -> BlockProfiler:
    """The job's model, measured block by block."""
    model = job.create_model(factory, CONFIG.seed, CONFIG)
    loss = TrainedParameters(model).watching(job.loss_function(factory))
    data = datasets.as_dataset(factory.create_data())
    compute = SliceComputer(model, loss, data, torch.device("cpu"), CONFIG.seed)
    profiler = BlockProfiler(compute, model, np.arange(4), factory, CONFIG)
    profiler.measure((), 0.0, CONFIG.batch_size)
    return profiler


def _stage(stage: int, told: Connection) -> None:
    """A process that is one stage: measures, is given its part, and makes the steps that it is told."""
    with _limited() as taken:
        profiler = _profiled(Wide())
        assert profiler.parts is not None
        parts = replace(profiler.parts, config=SETTLED)
        links = StageLinks(stage, b"secret", "127.0.0.1")
        told.send((profiler.costs, links.address))
        role: StageRole = told.recv()
        own = stage_of(parts, role, links, 0, TrainingState())
        told.send(None)
        while (task := told.recv()) is not None:
            told.send(own.step(task))
        links.close()
    told.send(taken["most"])


def _alone(told: Connection) -> None:
    """A process that trains the same model by itself."""
    factory = Wide()
    data = factory.create_data()
    with _limited():
        try:
            model = factory.create_model()
            optimizer = factory.create_optimizer(model, CONFIG)
            for _ in range(2):
                factory.loss(model, data[: CONFIG.micro_batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        except (MemoryError, RuntimeError) as error:
            told.send(f"{error}")
        else:
            told.send("trained")


def _answer(told: Connection) -> Any:
    assert told.poll(ANSWER_S), "no answer"
    return told.recv()


@contextmanager
def _processes(*starts: Any) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")
    ends, running = [], []
    for target, *arguments in starts:
        here, there = context.Pipe()
        process = context.Process(target=target, args=(*arguments, there), daemon=True)
        process.start()
        there.close()
        ends.append(here)
        running.append(process)
    try:
        yield ends
    finally:
        for process in running:
            process.kill()
            process.join()


def test_a_model_trains_whose_training_needs_twice_what_each_may_take() -> None:
    with _processes(*((_stage, number) for number in range(STAGES))) as told:
        measured = [_answer(each) for each in told]
        devices = [replace(costs, room=ROOM, host=str(number)) for number, (costs, _) in enumerate(measured)]
        assert need(devices[0], 0, BLOCKS, 1) > 2 * LIMIT
        micro_batches = CONFIG.batch_size // micro_batch(CONFIG)
        found = cuts.cut(devices, micro_batches)
        assert len(found.stages) == STAGES
        for number, stage in enumerate(found.stages):
            told[number].send(
                StageRole(
                    stage=number,
                    bounds=found.bounds,
                    addresses=tuple(address for _, address in measured),
                    secret=b"secret",
                    in_flight=stage.in_flight,
                )
            )
        for each in told:
            _answer(each)
        samples, losses, commit = SampleOrder(CONFIG.seed, 256, CONFIG.batch_size), [], None
        for step in range(1, STEPS + 1):
            for each in told:
                each.send(StageTask(step=step, batch=Slice.whole(samples.step(step)), commit=commit))
            done = [_answer(each) for each in told]
            commit = commit_of(step, done)
            losses.append(done[-1].loss)
        for each in told:
            each.send(None)
        taken = [_answer(each) for each in told]
    assert losses[-1] < losses[0]
    for number, (stage, most) in enumerate(zip(found.stages, taken, strict=True)):
        planned = need(devices[number], stage.first, stage.last, stage.in_flight)
        assert most == pytest.approx(planned, rel=0.1), f"stage {number} took {most:,}, planned were {planned:,.0f}"


def test_one_process_fails_under_the_same_limit() -> None:
    with _processes((_alone,)) as told:
        assert "memory" in _answer(told[0])
