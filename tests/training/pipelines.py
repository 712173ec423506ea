"""Pipelines in this process: each stage has a thread, a model and an optimizer of its own, and real connections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.models.blocks import blocks_of
from remote_agent.models.part import Part
from remote_agent.models.seams import trace
from remote_agent.planning import units
from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import TrainingState, of_optimizer
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.schedule import Schedule
from remote_agent.training.data import datasets
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.shared import audit, flat
from remote_agent.training.shared.messages import Slice
from remote_agent.training.shared.slices import Indices
from remote_agent.training.shared.stages import (
    Commit,
    StageDone,
    StageRole,
    StageTask,
    StageWeights,
    commit_of,
    micro_batch,
)
from remote_agent.training.wire.errors import ExchangeError
from remote_agent.training.wire.stage_links import StageLinks
from remote_agent.training.worker.device import recompute
from remote_agent.training.worker.device.audit import Auditor
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.trained import TrainedParameters
from remote_agent.training.worker.own_weights import OwnWeights
from remote_agent.training.worker.stage import Stage, unit_seed
from remote_agent.training.worker.staged import bring, renew
from remote_agent.training.worker.staging import BlockProfiler, StageParts, cut_between, stage_of

CPU = torch.device("cpu")
DEADLINE_S = 300.0


class Kept(NamedTuple):
    """What a checkpoint has."""

    done: int
    weights: StageWeights
    state: TrainingState


@dataclass(eq=False)
class LocalPipeline:
    """Stages cut at ``bounds``; as the coordinator does it, a step is applied with the next one.

    With ``settled`` it is applied at once. One worker measures the model for all of them, unless ``each_measures``. All
    stages compute on ``device``.
    """

    factory: Any
    config: TrainingConfig
    bounds: tuple[int, ...]
    in_flight: int = 4
    codec: str = "fp32"
    settled: bool = False
    each_measures: bool = False
    device: torch.device = CPU
    done: int = 0
    state: TrainingState = field(default_factory=TrainingState)
    weights: dict[str, Tensor] = field(default_factory=dict)
    samples: Sequence[int] | None = None
    stages: list[Stage] = field(default_factory=list)
    workers: list[StageParts] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __enter__(self) -> LocalPipeline:
        self._pool = ThreadPoolExecutor(len(self.bounds) - 1)
        self._commit: Commit | None = None
        self.data = datasets.as_dataset(self.factory.create_data())
        first = self._parts()
        others = range(len(self.bounds) - 2)
        self.workers = [first, *(self._parts(None if self.each_measures else first) for _ in others)]
        self._open()
        self.order = SampleOrder(self.config.seed, len(self.data), self.config.batch_size)
        model = job.create_model(self.factory, self.config.seed, self.config)
        self._schedule = Schedule(self.factory, model, self.config)
        return self

    def _open(self) -> None:
        count = len(self.bounds) - 1
        self._links = [StageLinks(stage, b"secret", "127.0.0.1") for stage in range(count)]
        addresses = tuple(links.address for links in self._links)

        def opened(stage: int) -> Stage:
            role = StageRole(
                stage=stage,
                bounds=self.bounds,
                addresses=addresses,
                secret=b"secret",
                in_flight=self.in_flight,
                codec=self.codec,
            )
            return stage_of(self.workers[stage], role, self._links[stage], self.done, self.state)

        self.stages = self.each(opened)

    def kept(self) -> Kept:
        """What a checkpoint after :meth:`train` has."""
        weights: StageWeights = {}
        remembered = {}
        for stage in self.stages:
            weights |= {
                name: (str(each.dtype), flat.to_bytes(each.detach().clone().view(-1)))
                for name, each in stage.own.items()
            }
            remembered |= of_optimizer(OwnWeights(stage.own), stage.optimizer, stage.average)
        return Kept(self.done, weights, TrainingState(optimizer=remembered))

    def lose(self, victim: int, step: int) -> None:
        """A stage ends in a step, and the others fail in it: each ends its connections, as a worker does."""
        task = StageTask(step=step, batch=Slice.whole(self._indices(step)), commit=self._commit)
        self._links[victim].close()

        def failing(stage: int) -> bool:
            try:
                self.stages[stage].step(task)
            except ExchangeError:
                self._links[stage].close()
                return True
            return False

        assert any(self.each(failing))

    def cut_anew(self, bounds: tuple[int, ...], kept: Kept | None = None) -> None:
        """The same workers get other stages, the first one the last; some may be left out.

        They go on from what was :meth:`kept`; None: from now, after :meth:`train`.
        """
        self.done, weights, state = kept or self.kept()
        for links in self._links:
            links.close()
        self.stages, self.bounds, self.state, self._commit = [], bounds, state, None
        self.workers = self.workers[::-1][: len(bounds) - 1]
        for parts in self.workers:
            renew(parts)
            bring(parts.model, weights)
        self._open()

    def __exit__(self, *unused: object) -> None:
        for links in self._links:
            links.close()
        self._pool.shutdown()

    def _parts(self, measured: StageParts | None = None) -> StageParts:
        model = job.create_model(self.factory, self.config.seed, self.config)
        if self.weights:
            model.load_state_dict(self.weights)
        if self.config.activation_checkpointing:
            recompute.apply(model, cut_between(model, self.factory))
        loss = TrainedParameters(model).watching(job.loss_function(self.factory))
        compute = SliceComputer(model, loss, self.data, self.device, self.config.seed)
        if measured is not None:
            compute.unit, compute.summed = measured.compute.unit, measured.compute.summed
            blocks = cut_between(model, self.factory)
            return dataclasses.replace(measured, model=model, blocks=blocks, compute=compute)
        profiler = BlockProfiler(compute, model, np.arange(4), self.factory, self.config)
        profiler.measure((), 0.0, self.config.batch_size)
        found = Auditor(model, compute.on(CPU)).alone(np.arange(4))
        audit.refuse(found, self.config)
        config = audit.with_reduction(audit.with_unit(self.config, batch_statistics=False), found)
        compute.unit, compute.summed = config.unit, config.loss_reduction == "sum"
        assert profiler.parts is not None, "it was measured"
        self.costs = profiler.costs
        return dataclasses.replace(profiler.parts, config=config)

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """What ``work`` gives for each stage, all at once."""
        futures = [self._pool.submit(work, stage) for stage in range(len(self.bounds) - 1)]
        return [future.result(DEADLINE_S) for future in futures]

    def step(self, step: int) -> list[StageDone]:
        """Make a step; it is applied with the next one, or by :meth:`settle`."""
        task = StageTask(step=step, batch=Slice.whole(self._indices(step)), commit=self._commit)
        found: list[StageDone] = self.each(lambda stage: self.stages[stage].step(task))
        self._commit = commit_of(step, found, self._schedule.options(step))
        assert self._commit is not None
        self.norms.append(self._commit.norm)
        self.losses.append(found[-1].loss)
        return found

    def _indices(self, step: int) -> Indices:
        indices = self.order.step(step)
        return indices if self.samples is None else indices[: self.samples[step % len(self.samples)]]

    def settle(self) -> None:
        """Apply the last step."""
        commit = self._commit
        assert commit is not None
        self.each(lambda stage: self.stages[stage].commit(commit))

    def train(self, steps: int) -> dict[str, Tensor]:
        """The weights after so many steps."""
        for step in range(self.done + 1, self.done + steps + 1):
            self.step(step)
            if self.settled:
                self.settle()
        self.settle()
        self.done += steps
        return self.trained()

    def trained(self) -> dict[str, Tensor]:
        """The weights, each from the stage that steps it."""
        return {name: each.detach().clone() for stage in self.stages for name, each in stage.own.items()}


def plain(
    factory: Any,
    config: TrainingConfig,
    steps: int,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    samples: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """The textbook's loop: a batch's mean gradient, accumulated over micro-batches, with torch's clipping.

    Random numbers are seeded before each block as in a pipeline.
    """
    model = job.create_model(factory, config.seed, config)
    blocks = blocks_of(model, getattr(factory, "layers", None))
    loss = job.loss_function(factory)
    data = datasets.as_dataset(factory.create_data())
    order = SampleOrder(config.seed, len(data), config.batch_size)
    seams = trace(model, blocks, lambda: loss(model, datasets.fetch(data, order.step(1)[:2])))
    whole = Part(model, blocks, seams, 0, len(blocks))
    optimizer = factory.create_optimizer(model, config)
    schedule = scheduler(optimizer) if scheduler is not None else None
    for step in range(1, steps + 1):
        indices = order.step(step)
        indices = indices[: samples[step % len(samples)]] if samples is not None else indices
        optimizer.zero_grad()
        ends = units.bounds(len(indices), micro_batch(config))
        for number, (begin, end) in enumerate(pairwise(ends)):
            batch = datasets.fetch(data, indices[begin:end])
            value = whole.run(
                lambda batch=batch: loss(model, batch),
                (),
                lambda block, number=number, step=step: seeded(unit_seed(config.seed, step, number, block)),
            )
            assert isinstance(value, Tensor)
            (value * ((end - begin) / len(indices))).backward()  # type: ignore[no-untyped-call]
        if config.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return {name: each.detach() for name, each in model.named_parameters()}


def seeded(seed: int) -> None:
    torch.manual_seed(seed)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal to 1e-5 of each weight's norm."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        wide = torch.complex128 if value.is_complex() else torch.float64
        error = float((found[name].cpu() - value).to(wide).norm() / value.to(wide).norm().clamp_min(1e-12))
        assert error <= 1e-5, f"{name}: {error:.2e}"


class Residual(nn.Sequential):
    """Adds what its members make of its input to that."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Small(nn.Module):
    """A language model whose output layer shares the embedding's weights, with dropout everywhere."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.tokens, self.drop = nn.Embedding(37, 16), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Residual(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 16))
            for _ in range(6)
        )
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.tokens(ids))
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.drop(self.norm(x)), self.tokens.weight)
