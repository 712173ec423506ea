"""The worker's part where no worker waits for a whole step: slices one after the other, the network beside them.

Two threads share the work. One computes slice after slice; the other sends each gradient and takes fresh weights in::

    computes   | slice 1 | slice 2 | slice 3 |
    exchanges            | slice 1 | slice 2 | slice 3 |

Slice 3 is computed with the weights that came back for slice 1: those for slice 2 are still on their way. So the
network is hidden while it is no slower than computing, and a worker's own gradients are one slice old. Where the task
asks for fresher weights than are here, the worker waits for those on their way, and fetches newer ones if they won't
do.

Two buffers of weights and two of gradients are enough: slice ``c`` begins when the exchange of ``c - 2`` is done.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remote_agent.training.deadlines import EXCHANGE_S, TRANSFER_S
from remote_agent.training.errors import JobError, LossNotFinite, TrainingError
from remote_agent.training.shared import flat
from remote_agent.training.shared.dataplane import StreamPlan
from remote_agent.training.shared.flat import Payload
from remote_agent.training.shared.messages import Failed, ShardLinkDown, StaleResult, StaleTask, Stamps
from remote_agent.training.wire.stale_client import StaleClient
from remote_agent.training.worker.device import backend
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device.compute import SliceComputer, SliceLoss
from remote_agent.training.worker.gradients import Gradients

_GIVEN_UP = ShardLinkDown(cause="the slice was given up: the run goes on with other shards")
_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True, kw_only=True)
class _Computed:
    """A slice whose gradient is ready: the ``turn``-th of this worker, from 0. Times as in ``StaleResult``."""

    task: StaleTask
    turn: int
    result: SliceLoss
    entered: float
    fetch_s: float
    compute_s: float


class StaleSteps:
    """One worker's slices. One thread calls :meth:`compute`, another one :meth:`exchange`, with the same tasks.

    Args:
        model: the model; its parameters become views of this worker's weights.
        client: the connections to the shards; started here.
        clip_norm: the most that the norm of a slice's mean gradient may be; 0: any.
        done: whole steps that were made before.

    Attributes:
        computed: how many slices it has computed, or failed to.
        following: it takes no part, and has fresh weights: it may :meth:`enter`.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: StreamPlan,
        client: StaleClient,
        compute: SliceComputer,
        clip_norm: float,
        done: int,
    ) -> None:
        self._model = model
        self._gradients = Gradients(model, plan)
        first = torch.cat([parameter.detach().reshape(-1) for parameter in self._gradients.parameters])
        first = first.to(devices.of_exchange(first.device))
        self._weights = (first, torch.zeros_like(first))
        self._pushed = (torch.zeros_like(first), torch.zeros_like(first))
        self._watermarks = [0, 0]
        self._client, self._compute, self._clip_norm, self._before = client, compute, clip_norm, done
        self._changed = threading.Condition()
        self.computed = 0
        self.following = False
        self._entered = threading.Event()
        self._begun = self._done = 0
        self._ready: dict[int, _Computed | Failed | ShardLinkDown] = {}
        self._broken: Failed | ShardLinkDown | None = None
        self._abandoned = False
        self._moved = (0, 0)
        self._show(0)
        client.start()

    def compute(self, task: StaleTask) -> None:
        """Compute the task's slice, as soon as there is room for its gradient; :meth:`exchange` tells how it went."""
        turn, self._begun = self._begun, self._begun + 1
        answer: _Computed | Failed | ShardLinkDown = ShardLinkDown(
            cause="the worker's own code failed; its log says where"
        )
        try:
            answer = self._computed(task, turn)
        except (JobError, LossNotFinite) as error:
            answer = Failed.of(error)
        except TrainingError as error:
            answer = ShardLinkDown(cause=str(error))
        finally:  # whatever happens, no caller waits in vain
            with self._changed:
                self._ready[task.own.index] = answer
                self.computed = turn + 1
                if not isinstance(answer, _Computed):
                    self._broken = self._broken or answer
                self._changed.notify_all()

    def exchange(self, number: int) -> StaleResult | Failed | ShardLinkDown:
        """Wait for slice ``number``'s gradient, push it, and wait until all shards have answered."""
        with self._changed:
            if not self._changed.wait_for(lambda: number in self._ready or self._abandoned, EXCHANGE_S):
                return ShardLinkDown(cause=f"slice {number} was not computed within {EXCHANGE_S:g} s")
            if self._abandoned:
                return _GIVEN_UP
            slice_ = self._ready.pop(number)
        if not isinstance(slice_, _Computed):
            return slice_
        side = (slice_.turn + 1) % 2
        samples = len(slice_.task.own.indices)
        try:
            timings = self._client.exchange(
                number,
                samples,
                self._pushed[slice_.turn % 2],
                self._weights[side],
                slice_.result.weight,
                feedback=not slice_.task.again,
            ).finish(EXCHANGE_S)
        except TrainingError as error:
            broken = ShardLinkDown(cause=str(error))
            with self._changed:
                self._broken = self._broken or broken
                self._changed.notify_all()
            return broken
        with self._changed:
            self._watermarks[side] = self._client.watermark
            moved = self._client.bytes_moved()
            before, self._moved = self._moved, moved
            self._done += 1
            self._changed.notify_all()
        return StaleResult(
            loss=slice_.result.loss,
            compute_s=slice_.compute_s,
            push_s=timings.push_s,
            pull_s=slice_.fetch_s + timings.pull_s,
            bytes_out=moved[0] - before[0],
            bytes_in=moved[1] - before[1],
            stamps=Stamps(entered=slice_.entered, left=time.monotonic()),
        )

    def follow(self) -> ShardLinkDown | None:
        """Take no part until :meth:`enter`, with the weights as they are once all own slices are through.

        By the thread that computes, and before the first slice where the run began without this worker.

        Returns:
            None once it is to take part again; why it can't.
        """
        if not self._wait_for_exchanges(self._begun):
            return ShardLinkDown(cause=(self._broken or _late()).cause)
        side = self._done % 2
        try:
            self._client.pull(self._weights[side], TRANSFER_S)
        except TrainingError as error:
            return ShardLinkDown(cause=str(error))
        self._watermarks[side] = max(self._watermarks[side], self._client.watermark)
        self._entered.clear()
        self.following = True
        self._entered.wait(EXCHANGE_S)
        self.following = False
        return None

    def enter(self) -> None:
        """What is issued from now on is for this worker too."""
        self._entered.set()

    def common(self, step: int) -> Tensor | None:
        """A copy of the weights after ``step``, on the CPU; None where they were never here as such.

        What comes back for a slice holds some slices of others and not the rest: only those of the beginning are known.
        """
        return self._weights[0].to("cpu", copy=True) if step == self._before and not self._begun else None

    def abandon(self) -> None:
        """End what waits for the shards, from any thread: the run goes on with others, and with another object."""
        with self._changed:
            self._abandoned = True
            self._broken = self._broken or _GIVEN_UP
            self._changed.notify_all()
        self._client.abandon()

    def close(self) -> None:
        """The model's parameters and gradients belong to another engine from now on; after :meth:`abandon`."""
        self._gradients.close()
        self._client.close()

    def again(self) -> None:
        """The slice under way is computed again from its beginning, by the thread that computes it."""
        self._gradients.again()

    def weights(self) -> Payload:
        """The trained parameters of the shards, fp32, by dtype, while no slice is under way; raises ExchangeError."""
        side = self._done % 2
        self._client.pull(self._weights[side], TRANSFER_S)
        self._watermarks[side] = max(self._watermarks[side], self._client.watermark)
        self._show(side)
        return flat.gather(flat.trained(self._model))

    # --- Computing ---------------------------------------------------------------------------------------------------

    def _computed(self, task: StaleTask, turn: int) -> _Computed | Failed | ShardLinkDown:
        if not self._wait_for_exchanges(turn - 1):
            return self._broken or _late()
        entered = time.monotonic()
        side = self._done % 2
        if self._watermarks[side] < task.needs:
            if not self._wait_for_exchanges(turn):
                return self._broken or _late()
            side = turn % 2
            if self._watermarks[side] < task.needs:
                # What is asked for was applied before the task was issued.
                self._client.pull(self._weights[side], EXCHANGE_S)
                self._watermarks[side] = max(task.needs, self._client.watermark)
        started = time.monotonic()
        self._show(side)
        gradient = self._pushed[turn % 2]
        self._gradients.begin(self._gradients.views(gradient))
        # Its position in the order names a slice's randomness: the numbers of slices begin anew when a run is resumed.
        own, called = dataclasses.replace(task.own, index=0), f"the run's slice {task.own.index:,}"
        result = self._compute(task.own.begin, own, called)
        self._gradients.check()
        self._clip(gradient, result.weight)
        return _Computed(
            task=task,
            turn=turn,
            result=result,
            entered=entered,
            fetch_s=started - entered,
            compute_s=time.monotonic() - started - result.aside_s,
        )

    def _wait_for_exchanges(self, count: int) -> bool:
        """Until so many of this worker's exchanges are done; False if that won't be."""
        with self._changed:
            self._changed.wait_for(lambda: self._done >= count or self._broken is not None, EXCHANGE_S)
            return self._done >= count

    @torch.no_grad()
    def _clip(self, gradient: Tensor, weight: float) -> None:
        """Clip the slice's mean gradient; ``gradient`` is the sum of what weighs ``weight``."""
        if not self._clip_norm or not weight:
            return
        norm = float(torch.linalg.vector_norm(gradient, dtype=backend.of(gradient.device).widest)) / weight
        factor = self._clip_norm / (norm + _CLIP_EPSILON)
        if not factor >= 1:  # NaN clips too: it has to stay visible
            gradient.mul_(factor)

    def _show(self, side: int) -> None:
        """The model's parameters are these weights."""
        self._gradients.show(self._gradients.views(self._weights[side]))


def _late() -> ShardLinkDown:
    return ShardLinkDown(cause=f"the shards did not answer within {EXCHANGE_S:g} s")
