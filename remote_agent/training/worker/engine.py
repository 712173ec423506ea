"""Defines the engine: a strategy's part on a worker, which makes the worker's part of each step on its device.

The worker owns the device, the model and the measurement. The engine exchanges weights with other processes. The
strategy's :class:`~remote_agent.strategies.StrategySpec` names the engine's class. The strategy's class on the
coordinator calls methods of the engine by name (``WorkerHandle.call``); every engine has the methods below.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from remote_agent.training.checkpoint.optimizer_state import (
    NotPortable,
    Resumption,
    TrainingState,
    of_average,
    of_optimizer,
)
from remote_agent.training.config import TrainingConfig
from remote_agent.training.deadlines import EXCHANGE_S
from remote_agent.training.shared import flat
from remote_agent.training.shared.average import WeightAverage
from remote_agent.training.shared.flat import FlatTensors, Payload
from remote_agent.training.shared.messages import (
    Failed,
    Result,
    ShardLinkDown,
    WorkerStatus,
)
from remote_agent.training.shared.optimizer_options import OptimizerOptions
from remote_agent.training.worker.assignments import Assignments
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.staging import BlockProfiler

LOG = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that a worker gives to an engine.

    Attributes:
        model: the model on the device, with the run's first weights.
        weights: its trained parameters, one flat buffer per dtype.
        compute: computes slices, and leaves their gradient sums in the model.
        config: the run's resolved configuration.
        buffers: names of the model's buffers and frozen parameters that training changes.
        options: of the optimizer in the coordinator's process, which a worker's own gets.
        blocks: the model's blocks and their costs, if the model is cut; then the model is on the CPU, and ``weights``
            is empty.
    """

    model: nn.Module
    weights: FlatTensors
    compute: SliceComputer
    factory: Any
    config: TrainingConfig
    buffers: tuple[str, ...]
    options: OptimizerOptions | None = None
    blocks: BlockProfiler | None = None


class Engine(ABC):
    """One strategy's part on one worker.

    Attributes:
        resumed: the state from which the run continues.
        optimizer: the job's optimizer, if the workers have it.
        average: the average of the weights, if the workers have the optimizer.
        following: the worker does not take part, but has the newest weights and may enter.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.resumed = Resumption(step=0)
        self.optimizer: Any = None
        self.average = WeightAverage(0.0)
        self.assignments = Assignments()
        self._held = TrainingState()

    @abstractmethod
    def join(self, way: Any, late: bool = False) -> str | Failed:
        """Connect to the other processes; returns the kind of the connection, in words.

        Args:
            way: data about the connection, from the strategy's class on the coordinator.
            late: steps were made without this worker, so it has to :meth:`follow` before it can take part in one.
        """

    @property
    @abstractmethod
    def computed(self) -> int:
        """The last step whose slice (if it had one) this worker has computed."""

    @property
    @abstractmethod
    def following(self) -> bool:
        """Whether the worker does not take part in steps, but could take part from any step on."""

    @abstractmethod
    def follow(self) -> ShardLinkDown | None:
        """Stay out of the steps until :meth:`enter`, and keep up to date; returns the reason if this fails."""

    @abstractmethod
    def enter(self, step: int) -> None:
        """Take part again, from ``step`` on."""

    def set_aside(self, step: int) -> None:
        """Drop queued slices of the steps up to ``step``, since other workers got them."""
        del step

    def account(self, coordinator: str) -> WorkerStatus | None:
        """Accept tasks only from this coordinator; returns the worker's state, None: the strategy has no takeover."""
        return self.assignments.account(coordinator, None)

    def weights(self) -> Payload:
        """The current trained parameters, by dtype."""
        return flat.gather(flat.trained(self.parts.model))

    def share_of(self, function: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """This worker's result of ``function``, which evaluates a batch with the whole model."""
        return function()

    def answered(self, answer: Answer) -> Answer:
        """Add the values beside the loss to ``answer``."""
        if isinstance(answer, ShardLinkDown):
            LOG.info("has no part in the step: %s", answer.cause)
        if not isinstance(answer, Result):
            return answer
        compute = self.parts.compute
        return dataclasses.replace(answer, at_most=compute.reduced(), scalars=compute.scalars.take())

    # --- For checkpoints, and going on from one ----------------------------------------------------------------------

    def restore(self, resumed: Resumption) -> None:
        """Continue from a checkpoint, with the state of this worker's own optimizer, if any; before :meth:`join`."""
        self.resumed = resumed

    def snapshot(self) -> None:
        """Keep the state of this worker's own optimizer, between two steps; see :mod:`.optimizer_state`."""
        self._held = TrainingState()
        if self.optimizer is None:
            return
        try:
            self._held = TrainingState(optimizer=of_optimizer(self.parts.model, self.optimizer, self.average))
        except NotPortable as error:
            self._held = TrainingState(optimizer=of_average(self.parts.model, self.average), missing=str(error))

    def snapshot_taken(self) -> TrainingState:
        held, self._held = self._held, TrainingState()
        return held


class WaitingEngine(Engine):
    """An engine that gets no weights while it does not take part, and waits until it is let in.

    No server can send it the weights of steps that it missed. Another worker gives it the weights at the beginning of a
    step, and it takes part from that step on (``strategies.allreduce.hand_over``).
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._follows = False
        self._entered = threading.Event()

    @property
    def following(self) -> bool:
        return self._follows

    def follow(self) -> ShardLinkDown | None:
        self._entered.clear()
        self._follows = True
        self._entered.wait(EXCHANGE_S)
        self._follows = False
        return None

    def enter(self, step: int) -> None:
        del step  # slices that are issued from now on include this worker
        self._entered.set()


def unusable(error: Exception) -> Failed:
    """Make the answer for a checkpoint whose optimizer state does not fit."""
    return Failed(cause=f"the checkpoint's optimizer state can't be used: {error}")
