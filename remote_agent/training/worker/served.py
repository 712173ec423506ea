"""Engines of strategies whose weights are with parameter servers: they stream, and can go back to an earlier step."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import (
    NotPortable,
    Resumption,
    States,
    TrainingState,
    into_optimizer,
    of_optimizer,
)
from remote_agent.training.errors import TrainingError
from remote_agent.training.shared import flat, optimizer_options
from remote_agent.training.shared.messages import (
    Failed,
    NotBegun,
    ShardLinkDown,
    StreamedAnswer,
    StreamedTask,
    WorkerStatus,
)
from remote_agent.training.wire.endpoint import StreamInfo
from remote_agent.training.worker.channels import Channel, open_channel
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.engine import Engine, Parts, unusable
from remote_agent.training.worker.local_rounds import LocalRounds
from remote_agent.training.worker.streamed import Streaming

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KeptState:
    """What a worker was after a step: the streamed weights, on the CPU, and its own optimizer's state."""

    weights: torch.Tensor
    inner: States


class StreamedEngine(Engine):
    """Steps that all workers make together; ``way`` is a :class:`StreamInfo`."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._kept: dict[int, KeptState] = {}
        self._steps: Streaming | None = None

    @property
    def steps(self) -> Streaming:
        assert self._steps is not None, "the worker has joined"
        return self._steps

    def join(self, way: StreamInfo, late: bool = False) -> str | Failed:
        parameters = flat.trained(self.parts.model)
        first = torch.cat([parameters[name].detach().reshape(-1) for name in way.plan.names])
        first = first.to(devices.of_exchange(first.device))
        self.parts.weights.flats.clear()  # the channel has its own, and for gradients too
        for parameter in parameters.values():
            parameter.grad = None
        try:
            channel = open_channel(way, first, None if late else self.resumed.step)
            self._steps = self._over(way, channel)
        except TrainingError as error:
            return Failed.of(error)
        except NotPortable as error:
            return unusable(error)
        self.parts.compute.on_repeat = self.steps.again
        LOG.info("joined over %s; shards: %d", channel.kind, len(way.shards))
        return channel.kind

    @property
    def computed(self) -> int:
        return self._steps.computed if self._steps is not None else 0

    @property
    def following(self) -> bool:
        return self._steps is not None and self._steps.following

    def follow(self) -> ShardLinkDown | None:
        return self.steps.follow()

    # --- Going back to an earlier step, with other shards ------------------------------------------------------------

    def keep(self, step: int, still: int) -> bool:
        """Keep, between two steps, what this worker needs to go back to ``step``, and what it kept for ``still``.

        Returns whether it could: not while it has not got the step's weights, nor where its optimizer's state can't be.
        """
        weights = self._steps.common(step) if self._steps is not None else None
        self._kept = {known: kept for known, kept in self._kept.items() if known == still}
        if weights is None:
            return False
        try:
            inner = of_optimizer(self.parts.model, self.optimizer) if self.optimizer is not None else {}
        except NotPortable as error:
            LOG.info("keeps nothing of step %d: %s", step, error)
            return False
        self._kept[step] = KeptState(weights=weights, inner=inner)
        return True

    def kept_weights(self, step: int) -> NDArray[np.float32] | None:
        """The streamed weights after ``step``, shape ``(layout.numel,)``; None: they were not kept."""
        kept = self._kept.get(step)
        return kept.weights.numpy() if kept is not None else None

    def abandon(self) -> None:
        """End the steps that wait for the shards, some of which are gone."""
        if self._steps is not None:
            self._steps.abandon()

    def rejoin(self, kept: NDArray[np.float32] | None, step: int, way: StreamInfo) -> str | Failed:
        """Go back to ``step``, and on with other shards; as :meth:`join`.

        Args:
            kept: the weights after ``step``, for a worker that has not kept them itself.
            step: is the last one that counts.
            way: to the shards.
        """
        mine = self._kept.get(step)
        if mine is None and kept is None:
            return Failed(cause=f"the weights of step {step} are not here", hint="resume the run")
        weights = mine.weights if mine is not None else torch.tensor(kept)
        if self._steps is not None:
            self._steps.close()
        parameters, begin = flat.trained(self.parts.model), 0
        for name in way.plan.names:
            parameter = parameters[name]
            part = weights[begin : begin + parameter.numel()]
            parameter.data = part.to(parameter.device, copy=True).view(parameter.shape)
            begin += parameter.numel()
        self.resumed = Resumption(step=step, state=TrainingState(optimizer=mine.inner if mine is not None else {}))
        self.assignments.forget()
        return self.join(way)

    def _over(self, entry: StreamInfo, channel: Channel) -> Streaming:
        return Streaming(self.parts.model, entry.plan, channel, self.parts.compute)

    def step(self, task: StreamedTask) -> StreamedAnswer:
        """This worker's part in a step; see :meth:`Streaming.step`."""
        if not self.assignments.begin(task):
            return ShardLinkDown(cause=f"step {task.step} is of a coordinator that was killed")
        answer = self.answered(self.steps.step(task))
        self.assignments.end(task, answer)
        return answer

    def repair(self, task: StreamedTask) -> StreamedAnswer:
        """A slice that another worker has lost; see :meth:`Streaming.repair`."""
        answer = self.answered(self.steps.repair(task))
        if not isinstance(answer, NotBegun):
            self.assignments.repaired(task, answer)
        return answer

    def account(self, coordinator: str) -> WorkerStatus | None:
        return self.assignments.account(coordinator, self._steps)

    def outcome(self, step: int) -> StreamedAnswer:
        """What came of this worker's part in ``step``, which it has begun for a coordinator that was killed."""
        return self.assignments.outcome(step)

    def enter(self, step: int) -> None:
        self.steps.enter(step)

    def set_aside(self, step: int) -> None:
        if self._steps is not None:
            self._steps.set_aside(step)


class LocalEngine(StreamedEngine):
    """Rounds of local steps, with the job's optimizer here."""

    def _over(self, entry: StreamInfo, channel: Channel) -> Streaming:
        parts = self.parts
        self.optimizer = job.create_optimizer(parts.factory, parts.model, parts.config)
        optimizer_options.adopt(self.optimizer, parts.options)
        into_optimizer(parts.model, self.optimizer, self.resumed.state.optimizer)
        clip_norm = parts.config.clip_norm
        return LocalRounds(parts.model, entry.plan, channel, parts.compute, self.optimizer, clip_norm)
