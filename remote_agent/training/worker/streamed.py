"""Makes a worker's part of a streamed step: parameters are views of the weights, gradients of the send buffer."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from remote_agent.training.deadlines import EXCHANGE_S, FOLLOW_S, REPAIR_S
from remote_agent.training.errors import JobError, LossNotFinite, TrainingError
from remote_agent.training.shared import optimizer_options
from remote_agent.training.shared.dataplane import StreamPlan
from remote_agent.training.shared.messages import (
    Counted,
    Failed,
    NotBegun,
    ShardLinkDown,
    Slice,
    Stamps,
    StreamedAnswer,
    StreamedResult,
    StreamedTask,
)
from remote_agent.training.wire.errors import FellBehind, StepIncomplete
from remote_agent.training.worker.channels import Channel
from remote_agent.training.worker.device.compute import SliceComputer, SliceLoss
from remote_agent.training.worker.gradients import Gradients, Offer


class Streaming:
    """Makes one worker's streamed steps. One thread calls :meth:`step`; another may call :meth:`repair` meanwhile.

    If the channel supports it, gradients are sent while backward still computes others. The first slice, and a slice
    that is larger than all before, is sent only when it is complete, since its memory may not suffice.

    Args:
        model: the model; its parameters become views of the channel's weights, where these are on its device.
        channel: the connection to the shards.

    Attributes:
        contributed: the last step whose slice (if it had one) this worker has contributed.
        following: it does not take part in the steps, but gets the weights of each; see :meth:`follow`.
    """

    def __init__(self, model: nn.Module, plan: StreamPlan, channel: Channel, compute: SliceComputer) -> None:
        self._gradients = Gradients(model, plan)
        self._own = self._gradients.views(channel.gradient)
        self._sides = tuple(self._gradients.views(side) for side in channel.weights)
        self._channel, self._compute = channel, compute
        self._most_done = 0
        self._offered = False
        self._progress: list[float] = []
        self._computing = threading.Lock()
        self._begun = threading.Condition()
        self._abandoned = False
        self._void = 0  # other workers got the tasks of steps up to this one
        self._entry: int | None = None  # the step from which this worker takes part again
        self.following = False
        self.contributed = channel.step
        self._flip()

    @property
    def computed(self) -> int:
        """The last step whose slice (if it had one) this worker has computed."""
        return self.contributed

    @property
    def finished(self) -> int:
        """The last step whose new weights this worker has."""
        return self._channel.step

    @property
    def is_aside(self) -> bool:
        """Whether it was set aside and has not been let in again."""
        return self._void > 0 and self._entry is None

    def step(self, task: StreamedTask) -> StreamedAnswer:
        """Compute the task's slice (if it has one), contribute it, and wait for the new weights."""
        return self._is_over(task) or answered(lambda: self._step(task))

    def _step(self, task: StreamedTask) -> StreamedAnswer:
        entered = computed = time.monotonic()
        result = SliceLoss(0.0, 0.0)
        self._channel.begin(task.step, task.slices, task.samples, self._options_for_shards(task))
        if task.own is not None:
            with self._computing:
                result = self._gradient_of(task, self._own)
                computed = time.monotonic()
                if not self._offered:
                    number, part = task.numbered
                    self._channel.contribute(number, result.weight, part)
        with self._begun:
            self.contributed = task.step
            self._begun.notify_all()
        timings = self._channel.finish(EXCHANGE_S)
        with self._computing:
            self._flip()
        return streamed(result, entered, computed, computed + timings.push_s, timings.bytes_out, timings.bytes_in)

    def repair(self, task: StreamedTask) -> StreamedAnswer:
        """Compute a slice that another worker has lost, with the same weights, and contribute it.

        It waits until this worker is in the same step. If the step is already complete, the slice had arrived.
        """
        with self._begun:
            if not self._begun.wait_for(lambda: self.contributed >= task.step or self._abandoned, REPAIR_S):
                return NotBegun()
            if self._abandoned:
                return ShardLinkDown(cause="the run goes on with other shards")
        return answered(lambda: self._repair(task))

    def _repair(self, task: StreamedTask) -> StreamedAnswer:
        assert task.own is not None, "a slice is repaired"
        entered = time.monotonic()
        with self._computing:
            if self._channel.step >= task.step:
                return Counted()
            gradient = self._channel.spare()
            result = self._gradient_of(task, self._gradients.views(gradient))
            for other in task.more:
                result = together(result, self._added(dataclasses.replace(task, own=other, more=()), gradient))
            computed = time.monotonic()
            number, part = task.numbered
            self._channel.contribute_spare(number, gradient, result.weight, part)
        return streamed(result, entered, computed, time.monotonic(), gradient.nbytes, 0)

    def _added(self, task: StreamedTask, gradient: Tensor) -> SliceLoss:
        """Add the gradient sum of the task's slice to ``gradient``."""
        also = self._channel.spare()
        result = self._gradient_of(task, self._gradients.views(also))
        gradient.add_(also)
        return result

    def _options_for_shards(self, task: StreamedTask) -> bytes:
        return optimizer_options.encoded(task.options)

    # --- Left out, and in again --------------------------------------------------------------------------------------

    def set_aside(self, step: int) -> None:
        """Drop queued slices of the steps up to ``step``, since other workers got them."""
        with self._begun:
            self._void, self._entry = step, None

    def enter(self, step: int) -> None:
        """Take part again, from ``step`` on; :meth:`follow` ends with the step before."""
        with self._begun:
            self._entry, self._void = step, min(self._void, step - 1)

    def follow(self) -> ShardLinkDown | None:
        """Get the newest weights, and then those of each step without taking part, until :meth:`enter` is called.

        In this way a worker that is new, or missed steps, catches up while the others continue.
        """
        try:
            while not self._enters():
                try:
                    self._channel.begin(self._channel.step + 1, 0, 0)
                    self.following = True
                    self._channel.finish(FOLLOW_S)
                except StepIncomplete:
                    continue
                except FellBehind:
                    self.following = False
                    newest = self._channel.fetch()
                    with self._computing:  # a slice in progress needs the weights before until its end
                        if newest is not None:
                            self._channel.fetched(newest)
                with self._computing:
                    self._flip()
                with self._begun:
                    self.contributed = max(self.contributed, self._channel.step)
                    self._begun.notify_all()
        except TrainingError as error:
            return ShardLinkDown(cause=str(error))
        finally:
            self.following = False
        return None

    def _is_over(self, task: StreamedTask) -> Counted | ShardLinkDown | None:
        """The answer to a step that is no longer this worker's."""
        if task.step <= self._void:
            return ShardLinkDown(cause=f"step {task.step} was given to others")
        return Counted() if task.step <= self._channel.step else None

    def _enters(self) -> bool:
        with self._begun:
            return self._entry is not None and self._channel.step >= self._entry - 1

    def common(self, step: int) -> Tensor | None:
        """A copy, on the CPU, of the common weights after ``step``; None: this worker's newest weights are others."""
        with self._computing:
            if self._channel.step != step:
                return None
            return self._channel.weights[step % 2].detach().to("cpu", copy=True)

    def abandon(self) -> None:
        """Wake the threads that wait for the shards, from any thread; a new object continues with other shards."""
        with self._begun:
            self._abandoned = True
            self._begun.notify_all()
        self._channel.abandon()

    def close(self) -> None:
        """Release the model's parameters and gradients for another engine; after :meth:`abandon`."""
        with self._computing:  # a useless slice of an earlier coordinator may be in progress
            self._gradients.close()
        self._channel.close()

    def again(self) -> None:
        """Prepare to compute the current slice again from its beginning, in the thread that computes it.

        Raises:
            TrainingError: a part of it is already being sent, so another worker has to compute it.
        """
        if self._offered:
            raise TrainingError("memory was full when a part of the slice's gradient was sent", hint="lower max_batch")
        self._gradients.again()

    def _gradient_of(self, task: StreamedTask, views: Sequence[Tensor]) -> SliceLoss:
        """Leave the gradient sum of the task's slice in ``views``, and return its loss and weight."""
        assert task.own is not None, "the task has a slice"
        samples, mine = len(task.own.indices), views is self._own
        self._gradients.begin(views)
        self._offered = False
        began = time.perf_counter()
        self._compute.on_last = partial(self._last, task, began) if mine and self._channel.offering else None
        try:
            result = self._compute(task.step, task.own)
        finally:
            self._compute.on_last = None
        self._gradients.check()
        if self._gradients.once and not self._offered:
            self._most_done = max(self._most_done, samples)
            self._progress = _progress(self._gradients.moments, began)
        return result

    # --- While backward computes -------------------------------------------------------------------------------------

    def _last(self, task: StreamedTask, began: float, result: SliceLoss) -> None:
        """When the slice's last backward begins, offer its gradients during backward, if they are sure to count."""
        own, offering = task.own, self._channel.offering
        assert own is not None, "the task has a slice"
        if offering and self._gradients.once and math.isfinite(result.loss) and len(own.indices) <= self._most_done:
            self._offered = True
            number, part = task.numbered
            self._gradients.last(self._at_its_pace(offering(number, result.weight, part), own, began))
        else:
            self._gradients.last(None)

    def _at_its_pace(self, offer: Offer, own: Slice, began: float) -> Offer:
        """``offer``; on a simulated device, each gradient is offered no earlier than on a real one."""
        device = self._compute.simulated
        if device is None:
            return offer
        positions = dict(zip(self._gradients.begins, self._progress, strict=True))

        def paced(begin: int, end: int) -> None:
            device.sleep_until_target(len(own.indices), began, positions[begin])
            offer(begin, end)

        return paced

    def _flip(self) -> None:
        """Have the parameters be the newest weights."""
        self._gradients.show(self._sides[self._channel.step % 2])


def answered(work: Callable[[], StreamedAnswer]) -> StreamedAnswer:
    """The answer of ``work``; an error of the job and an unreachable shard are answers, too."""
    try:
        return work()
    except (JobError, LossNotFinite) as error:
        return Failed.of(error)
    except TrainingError as error:
        return ShardLinkDown(cause=str(error))


def together(one: SliceLoss, other: SliceLoss) -> SliceLoss:
    """What two slices came to, as one."""
    weight = one.weight + other.weight
    loss = (one.loss * one.weight + other.loss * other.weight) / (weight or 1.0)
    return SliceLoss(loss=loss, weight=weight)


def streamed(
    result: SliceLoss, entered: float, computed: float, pushed: float, bytes_out: int, bytes_in: int
) -> StreamedResult:
    """Make the result of a call that ends now, from the times of its start, of its computing and of its push."""
    return StreamedResult(
        loss=result.loss,
        weight=result.weight,
        compute_s=computed - entered,
        pushed=pushed,
        bytes_out=bytes_out,
        bytes_in=bytes_in,
        stamps=Stamps(entered=entered, left=time.monotonic()),
    )


def _progress(moments: Sequence[float], began: float) -> list[float]:
    """For each gradient, the part of the slice's time that had passed when it was computed."""
    whole = max(moments) - began
    return [max(0.0, min(1.0, (moment - began) / whole)) if whole > 0 else 1.0 for moment in moments]
