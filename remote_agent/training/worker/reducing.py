"""The engine of all-reduce: the workers alone have the weights; see ``reduction``."""

from __future__ import annotations

import ray

from remote_agent.training import job
from remote_agent.training.checkpoint.optimizer_state import (
    NotPortable,
    Resumption,
    TrainingState,
    into_optimizer,
)
from remote_agent.training.deadlines import TRANSFER_S
from remote_agent.training.errors import TrainingError
from remote_agent.training.shared import optimizer_options, rpc
from remote_agent.training.shared.average import WeightAverage
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import Broken, Failed, Reduced, ReductionTask
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.worker.engine import Parts, WaitingEngine, unusable
from remote_agent.training.worker.reduction import Reduction

KIND = "gloo"


class ReductionEngine(WaitingEngine):
    """See the module; ``way`` is what the changed buffers are before the first step."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._reduction: Reduction | None = None

    def join(self, way: Payload, late: bool = False) -> str | Failed:
        parts = self.parts
        try:
            optimizer = job.create_optimizer(parts.factory, parts.model, parts.config)
            optimizer_options.adopt(optimizer, parts.options)
            self.average = WeightAverage(parts.config.ema_decay)
            into_optimizer(parts.model, optimizer, self.resumed.state.optimizer, self.average)
            self._reduction = Reduction(
                parts,
                optimizer,
                first=way,
                done=self.resumed.step,
                address=ray.util.get_node_ip_address(),
                average=self.average,
            )
        except TrainingError as error:
            return Failed.of(error)
        except (NotPortable, ValueError) as error:
            return unusable(error)
        self.optimizer = optimizer
        return KIND

    def take_over(self, step: int, given: tuple[Ref[Payload], Ref[TrainingState]]) -> Failed | None:
        """Be what another worker is after ``step``, and take part in reductions from the next one on.

        Args:
            step: the last one that is applied.
            given: the other one's :meth:`weights` and optimizer state.
        """
        payload, state = rpc.get(given[0], TRANSFER_S), rpc.get(given[1], TRANSFER_S)
        if state.missing:
            return Failed(cause=f"it can't take over the optimizer's state: {state.missing}")
        self.parts.weights.load(payload)
        self.resumed = Resumption(step=step, state=state)
        answer = self.join(payload[len(self.parts.weights.flats) :])
        return answer if isinstance(answer, Failed) else None

    @property
    def computed(self) -> int:
        return self._reduction.contributed if self._reduction is not None else 0

    @property
    def reduction(self) -> Reduction:
        assert self._reduction is not None, "the worker has joined"
        return self._reduction

    def reduce(self, task: ReductionTask) -> Reduced | Broken | Failed:
        """This worker's part in a step; see :meth:`Reduction.step`."""
        return self.answered(self.reduction.step(task))

    def commit(self, step: int) -> Failed | None:
        """Apply ``step``, which was reduced; see :meth:`Reduction.commit`."""
        try:
            self.reduction.commit(step)
        except TrainingError as error:
            return Failed.of(error)
        return None

    def give_up(self, number: int) -> None:
        """Stop waiting in group ``number``; see :meth:`Reduction.give_up`."""
        self.reduction.give_up(number)

    def progress(self) -> tuple[int, int]:
        """The last step whose slices this worker has computed, and how many pieces it has reduced so far."""
        return self.reduction.contributed, self.reduction.moved

    def weights(self) -> Payload:
        return self.reduction.payload()
