"""What a strategy brings to a worker: an engine, which makes the worker's part of each step on its device.

The worker owns the device, the model and the measurement; the engine has the weights' way to the others. Which class it
is the strategy's :class:`~remote_agent.strategies.StrategySpec` says. The strategy's other half, on the coordinator,
calls the engine's methods by name (``Member.call``); those that are named here every engine has.
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

from remote_agent.training.checkpoint.optimizer_state import NotPortable, Resumption, TrainingState, of_optimizer
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
from remote_agent.training.worker.assignments import Assignments
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.staging import BlockProfiler

LOG = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an engine works with.

    Attributes:
        model: on the device, with the run's first weights.
        weights: its trained parameters, one flat buffer per dtype.
        compute: computes slices, and leaves their gradient sums in the model.
        config: the run's, as it is settled.
        buffers: names of the model's buffers and frozen parameters that training changes.
        blocks: what the model's blocks are and cost, where it is cut; the model is on the CPU then, and ``weights`` are
            none.
    """

    model: nn.Module
    weights: FlatTensors
    compute: SliceComputer
    factory: Any
    config: TrainingConfig
    buffers: tuple[str, ...]
    blocks: BlockProfiler | None = None


class Engine(ABC):
    """One strategy's part on one worker.

    Attributes:
        resumed: where the run goes on.
        optimizer: the job's, where it is on the workers.
        average: of the weights, where the optimizer is on the workers.
        following: it takes no part in the steps, and has the newest weights: it may enter.
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
        """Connect with the others. Returns the kind of the way, in words.

        Args:
            way: what the strategy's coordinator gives all workers to know.
            late: steps were made without this worker: it has to :meth:`follow` before it can take part in one.
        """

    @property
    @abstractmethod
    def computed(self) -> int:
        """The last step whose slice (if it had one) this worker has computed."""

    @property
    @abstractmethod
    def following(self) -> bool:
        """Whether it takes no part in the steps, and has what it needs to take part from any step on."""

    @abstractmethod
    def follow(self) -> ShardLinkDown | None:
        """Take no part until :meth:`enter`, and get up to date meanwhile; says why that can't be."""

    @abstractmethod
    def enter(self, step: int) -> None:
        """Take part again, from ``step`` on."""

    def set_aside(self, step: int) -> None:
        """The slices of the steps up to ``step`` were given to others: what is queued of them is not to be done."""
        del step

    def account(self, coordinator: str) -> WorkerStatus | None:
        """Take tasks from this coordinator alone from now on; returns the worker's state, None without takeover."""
        return self.assignments.account(coordinator, None)

    def weights(self) -> Payload:
        """The trained parameters as they are now, by dtype."""
        return flat.gather(flat.trained(self.parts.model))

    def renew(self) -> None:
        """Have the newest weights in the model; between two steps."""
        return  # they are there

    def share_of(self, function: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What this worker has to say about ``function``, which measures a batch with the whole model."""
        return function()

    def answered(self, answer: Answer) -> Answer:
        """``answer``, with what the loss gave beside the loss, and what else the coordinator should know of it."""
        if isinstance(answer, ShardLinkDown):
            LOG.info("has no part in the step: %s", answer.cause)
        if not isinstance(answer, Result):
            return answer
        compute = self.parts.compute
        notice = compute.watch.take_notice() if compute.watch is not None else ""
        return dataclasses.replace(answer, at_most=compute.reduced(), scalars=compute.scalars.take(), notice=notice)

    # --- For checkpoints, and going on from one ----------------------------------------------------------------------

    def restore(self, resumed: Resumption) -> None:
        """Go on from a checkpoint, with the state of this worker's own optimizer if it has one; before :meth:`join`."""
        self.resumed = resumed

    def snapshot(self) -> None:
        """Keep what this worker's own optimizer remembers, between two steps; see :mod:`.optimizer_state`."""
        self._held = TrainingState()
        if self.optimizer is None:
            return
        try:
            self._held = TrainingState(optimizer=of_optimizer(self.parts.model, self.optimizer, self.average))
        except NotPortable as error:
            self._held = TrainingState(missing=str(error))

    def snapshot_taken(self) -> TrainingState:
        held, self._held = self._held, TrainingState()
        return held


class WaitingEngine(Engine):
    """An engine that nothing has to reach while it takes no part: it waits until it is let in.

    Where no server can send it the weights of a step that it had no part in, it has them from another worker at the
    beginning of a step, and is let in with that step (``recovery.state_transfer``).
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
        del step  # what is given out from now on is for this worker too
        self._entered.set()


def unusable(error: Exception) -> Failed:
    """The answer where a checkpoint's optimizer state does not fit."""
    return Failed(cause=f"the checkpoint's optimizer state can't be used: {error}")
