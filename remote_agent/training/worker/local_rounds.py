"""Makes a worker's part of local SGD: rounds of local steps between two exchanges.

In a round a worker starts from the common weights ``w``, makes ``H_i`` steps with the job's own optimizer on its own
samples, and ends at ``w_i``. It contributes ``n_i (w - w_i)``, with ``n_i`` the samples that it used. The shards divide
the sum by all samples: the mean ``w - w_i`` is the *outer gradient*, and the outer optimizer steps along it. See Stich,
"Local SGD converges fast and communicates little" (ICLR 2019); Douillard et al., "DiLoCo" (arXiv:2311.08105, 2023).

The inner optimizer's state (moments) stays on the worker from round to round, and is not exchanged.

A *delayed* round hides its exchange behind the next round's computation. Its call returns when the contribution is
being sent; the worker assumes that the new common weights will be its own, ``w_i``, and continues from there. After
each local step of the next round it checks whether the common weights ``w'`` have arrived; after the last one it waits
for them. Then it adds its error, ``w' - w_i``, to its weights, and keeps the steps since. So its next contribution is
again the difference between the common weights and its own, and each local step is counted once. See Zhou et al.,
"DaSGD" (arXiv:2006.00441, 2020); Douillard et al., "Streaming DiLoCo with overlapping communication" (arXiv:2501.18512,
2025).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from remote_agent.training import job
from remote_agent.training.deadlines import EXCHANGE_S
from remote_agent.training.shared import flat, optimizer_options
from remote_agent.training.shared.dataplane import StreamPlan
from remote_agent.training.shared.messages import (
    Slice,
    StreamedAnswer,
    StreamedTask,
)
from remote_agent.training.wire.steps import Timings
from remote_agent.training.worker.channels import Channel
from remote_agent.training.worker.device.compute import SliceComputer, SliceLoss
from remote_agent.training.worker.streamed import Streaming, streamed


class LocalRounds(Streaming):
    """Makes streamed rounds instead of steps; the contribution of a slice is the change by its local steps.

    Args beside those of :class:`Streaming`, whose model's parameters become views of this worker's own weights:
        optimizer: the job's, over ``model``.
        clip_norm: largest norm of a local step's gradient; 0: no limit.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: StreamPlan,
        channel: Channel,
        compute: SliceComputer,
        optimizer: torch.optim.Optimizer,
        clip_norm: float,
    ) -> None:
        self._optimizer, self._clip_norm = optimizer, clip_norm
        device = next(model.parameters()).device
        self._weights = torch.empty_like(channel.gradient, device=device)
        self._inner = torch.empty_like(channel.gradient, device=device)
        self._assumed: Tensor | None = None  # own weights at the end of the delayed round whose exchange is open
        self._moved = [0, 0]  # bytes (out, in) of exchanges that have ended since the last result
        self._made = -1  # the last round whose local steps this worker has made
        super().__init__(model, plan, channel, compute)
        self._inner_views = self._gradients.views(self._inner)
        self._gradients.show(self._gradients.views(self._weights))

    @property
    def computed(self) -> int:
        return max(self.contributed, self._made)

    def _step(self, task: StreamedTask) -> StreamedAnswer:
        """Make the task's round and contribute it; unless it is delayed, wait for the new common weights."""
        if not task.delayed and self._assumed is None:
            return super()._step(task)
        entered = computed = time.monotonic()
        result = SliceLoss(0.0, 0.0)
        if task.own is not None:
            with self._computing:
                result = self._local_steps(task, correcting=True)
                computed = time.monotonic()
        self._made = task.step
        self._catch_up()
        self._channel.begin(task.step, task.slices, task.samples)
        if task.own is not None:
            with self._computing:
                self._leave_difference(task.step - 1, len(task.own.indices), self._own)
                number, part = task.numbered
                self._channel.contribute(number, result.weight, part)
        if task.delayed:
            self._assumed = self._weights.clone()
        with self._begun:
            self.contributed = task.step
            self._begun.notify_all()
        if not task.delayed:
            self._count(self._channel.finish(EXCHANGE_S))
            with self._computing:
                self._flip()
        moved, self._moved = self._moved, [0, 0]
        return streamed(result, entered, computed, computed, *moved)

    def _options_for_shards(self, task: StreamedTask) -> bytes:
        del task  # they are of the job's optimizer, and the shards have the outer one
        return b""

    def _catch_up(self) -> None:
        """Wait for the common weights of the delayed round, if one is open; lost slices are repaired meanwhile."""
        if self._assumed is not None:
            self._count(self._channel.finish(EXCHANGE_S))
            with self._computing:
                self._correct()

    @torch.no_grad()
    def _correct(self) -> None:
        """Correct this worker's weights when the delayed round's common weights have arrived."""
        assert self._assumed is not None, "a delayed round was open"
        common = self._channel.weights[self._channel.step % 2]
        self._weights.add_(common.to(self._weights.device)).sub_(self._assumed)
        self._assumed = None

    def _count(self, timings: Timings) -> None:
        self._moved = [self._moved[0] + timings.bytes_out, self._moved[1] + timings.bytes_in]

    def _gradient_of(self, task: StreamedTask, views: Sequence[Tensor]) -> SliceLoss:
        """Make the round's local steps, leave ``n (w - w_i)`` in ``views``, and return their loss and weight.

        A lost round of another worker does not change this worker's weights and optimizer.
        """
        assert task.own is not None, "the task has a slice"
        mine = views is self._own
        before = None if mine else (self._weights.clone(), copy.deepcopy(self._optimizer.state_dict()))
        self._weights.copy_(self._channel.weights[(task.step - 1) % 2])
        result = self._local_steps(task)
        self._leave_difference(task.step - 1, len(task.own.indices), views)
        if before is not None:
            self._weights.copy_(before[0])
            self._optimizer.load_state_dict(before[1])
        return result

    def _local_steps(self, task: StreamedTask, correcting: bool = False) -> SliceLoss:
        """Train from this worker's own weights; the samples of all local steps weigh the same in the round.

        Args:
            task: has a slice.
            correcting: the common weights of a delayed round may come meanwhile.
        """
        assert task.own is not None, "the task has a slice"
        optimizer_options.set_options(self._optimizer, task.options)
        samples = task.own.indices
        total = 0.0
        for number, begin in enumerate(range(0, len(samples), task.local_batch)):
            batch = samples[begin : begin + task.local_batch]
            self._gradients.begin(self._inner_views)
            # The number of a slice that no other local step of the round has, for its randomness.
            place = task.own.begin + begin
            number = task.own.index + number * len(task.spans)
            result = self._compute(task.step, Slice.whole(batch, number, place))
            self._gradients.check()
            if not result.weight:
                continue  # nothing in it counts, as in a step without it
            self._inner.div_(result.weight)
            self._step_optimizer()
            total += result.loss * len(batch)
            if correcting and self._assumed is not None and self._channel.ready():
                self._count(self._channel.finish(EXCHANGE_S))
                self._correct()
        return SliceLoss(loss=total / len(samples), weight=float(len(samples)))

    def _step_optimizer(self) -> None:
        parameters, users = self._gradients.parameters, flat.users_of((self._inner,))
        for parameter, gradient in zip(parameters, self._gradients.views(self._inner), strict=True):
            parameter.grad = gradient
        del gradient
        if self._clip_norm:
            nn.utils.clip_grad_norm_(parameters, self._clip_norm)
        job.guard("the optimizer's step", self._optimizer.step)
        flat.settle(parameters, self._gradients.views(self._weights))
        for parameter in parameters:
            parameter.grad = None
        if flat.users_of((self._inner,)) > users:  # the optimizer keeps gradients until its next step
            self._inner = torch.empty_like(self._inner)
            self._inner_views = self._gradients.views(self._inner)

    @torch.no_grad()
    def _leave_difference(self, step: int, samples: int, views: Sequence[Tensor]) -> None:
        for view, start, parameter in zip(views, self._sides[step % 2], self._gradients.parameters, strict=True):
            parameter.grad = None
            torch.sub(start, parameter.to(start.device), out=view)
            view.mul_(samples)

    def _flip(self) -> None:
        """Set the worker's own weights to the newest common ones."""
        self._assumed = None
        self._weights.copy_(self._channel.weights[self._channel.step % 2])
