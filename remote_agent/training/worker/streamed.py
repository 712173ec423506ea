"""The worker's part in a streamed step: parameters are views of weights, gradients land where they are sent from."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from remote_agent.training.deadlines import EXCHANGE_S, FOLLOW_S, REPAIR_S
from remote_agent.training.errors import JobError, LossNotFinite, TrainingError
from remote_agent.training.shared import flat
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
from remote_agent.training.worker.device.compute import SliceLoss
from remote_agent.training.worker.device.simulation import SimulatedDevice
from remote_agent.training.worker.gradients import Gradients, Offer


class Compute(Protocol):
    """Computes slices; see :class:`~remote_agent.training.worker.device.compute.SliceComputer`."""

    simulated: SimulatedDevice | None
    on_last: Callable[[SliceLoss], None] | None

    def __call__(self, step: int, own: Slice, at: str = "") -> SliceLoss:
        """Leave the gradient sum over the slice's samples with the parameters, and say what it came to."""


class Streaming:
    """One worker's streamed steps. :meth:`step` is called by one thread, :meth:`repair` may be by another meanwhile.

    Where the channel can, gradients are on their way while backward still computes others. The first slice is sent when
    it is done, to see whether that is possible, and so is one that is larger than any before: its memory may not do.

    Args:
        model: the model; its parameters become views of the channel's weights.
        names: of the parameters in the buffer, in its order.
        watched: names of those that must not get a gradient.
        channel: the way to the shards.
        compute: computes one slice.

    Attributes:
        contributed: the last step whose slice (if it had one) this worker has contributed.
        following: it takes no part in the steps, and gets the weights of each; see :meth:`follow`.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str], watched: Sequence[str], channel: Channel, compute: Compute
    ) -> None:
        everything = flat.trained(model)
        self._parameters = {name: everything[name] for name in names}
        self._gradients = Gradients(self._parameters, {name: everything[name] for name in watched})
        self._own = self._gradients.views(channel.gradient)
        self._sides = tuple(self._gradients.views(side) for side in channel.weights)
        self._channel, self._compute = channel, compute
        self._most_done = 0
        self._offered = False
        self._progress: list[float] = []
        self._computing = threading.Lock()
        self._begun = threading.Condition()
        self._abandoned = False
        self._void = 0  # tasks of steps up to this one were given to others
        self._entry: int | None = None  # the step that this worker is to take part in again
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
        """Whether it was set aside, and was not let in again."""
        return self._void > 0 and self._entry is None

    def step(self, task: StreamedTask) -> StreamedAnswer:
        """Compute the task's slice (if it has one), contribute it, and wait for the new weights."""
        return self._is_over(task) or answered(lambda: self._step(task))

    def _step(self, task: StreamedTask) -> StreamedAnswer:
        entered = computed = time.monotonic()
        result = SliceLoss(0.0, 0.0)
        self._channel.begin(task.step, task.slices, task.samples)
        if task.own is not None:
            with self._computing:
                result = self._gradient_of(task, self._own)
                computed = time.monotonic() - result.aside_s
                if not self._offered:
                    self._channel.contribute(task.own.index, result.weight)
        with self._begun:
            self.contributed = task.step
            self._begun.notify_all()
        timings = self._channel.finish(EXCHANGE_S)
        with self._computing:
            self._flip()
        return streamed(result, entered, computed, computed + timings.push_s, timings.bytes_out, timings.bytes_in)

    def repair(self, task: StreamedTask) -> StreamedAnswer:
        """Compute a slice that another worker has lost, with the same weights, and contribute it.

        It waits until this worker is in the step itself. A step that is whole had the slice after all.
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
            computed = time.monotonic() - result.aside_s
            self._channel.contribute_spare(task.own.index, gradient, result.weight)
        return streamed(result, entered, computed, time.monotonic(), gradient.nbytes, 0)

    # --- Left out, and in again --------------------------------------------------------------------------------------

    def set_aside(self, step: int) -> None:
        """The slices of the steps up to ``step`` were given to others: what is queued of them is not to be done."""
        with self._begun:
            self._void, self._entry = step, None

    def enter(self, step: int) -> None:
        """Take part again, from ``step`` on: :meth:`follow` is to end with the step before it."""
        with self._begun:
            self._entry, self._void = step, min(self._void, step - 1)

    def follow(self) -> ShardLinkDown | None:
        """Get the newest weights, and then those of each step, without a part in it, until :meth:`enter` says when.

        A worker that joins a run, or missed a part of it, is brought up to date by this while the others go on.
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
                    with self._computing:  # a slice that is computed with the weights before needs them to its end
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
        """What to answer to a step that is not this worker's any more."""
        if task.step <= self._void:
            return ShardLinkDown(cause=f"step {task.step} was given to others")
        return Counted() if task.step <= self._channel.step else None

    def _enters(self) -> bool:
        with self._begun:
            return self._entry is not None and self._channel.step >= self._entry - 1

    def common(self, step: int) -> Tensor | None:
        """A copy, on the CPU, of the common weights after ``step``; None: they are not the newest here."""
        with self._computing:
            if self._channel.step != step:
                return None
            return self._channel.weights[step % 2].detach().to("cpu", copy=True)

    def abandon(self) -> None:
        """End what waits for the shards, from any thread: the run goes on with others, and with another object."""
        with self._begun:
            self._abandoned = True
            self._begun.notify_all()
        self._channel.abandon()

    def close(self) -> None:
        """The model's parameters and gradients belong to another engine from now on; after :meth:`abandon`."""
        with self._computing:  # a slice of an earlier coordinator may be under way, for nothing
            self._gradients.close()
        self._channel.close()

    def again(self) -> None:
        """The slice under way is computed again from its beginning, by the thread that computes it.

        Raises:
            TrainingError: a part of it is on its way; another worker has to do it.
        """
        if self._offered:
            raise TrainingError("memory was full when a part of the slice's gradient was sent", hint="lower max_batch")
        self._gradients.again()

    def _gradient_of(self, task: StreamedTask, views: Sequence[Tensor]) -> SliceLoss:
        """Leave the gradient sum of the task's slice in ``views``, and say what it came to."""
        assert task.own is not None, "the task has a slice"
        samples, mine = len(task.own.indices), views is self._own
        self._gradients.begin(views)
        self._offered = False
        began = time.perf_counter()
        self._compute.on_last = partial(self._last, task.own, began) if mine and self._channel.offering else None
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

    def _last(self, own: Slice, began: float, result: SliceLoss) -> None:
        """The own slice's last backward begins: offer its gradients as they come, if nothing can make them void."""
        offering = self._channel.offering
        if offering and self._gradients.once and math.isfinite(result.loss) and len(own.indices) <= self._most_done:
            self._offered = True
            self._gradients.last(self._at_its_pace(offering(own.index, result.weight), own, began))
        else:
            self._gradients.last(None)

    def _at_its_pace(self, offer: Offer, own: Slice, began: float) -> Offer:
        """``offer``; on a simulated device each gradient is there no sooner than it would be on a real one."""
        device = self._compute.simulated
        if device is None:
            return offer
        positions = dict(zip(self._gradients.begins, self._progress, strict=True))

        def paced(begin: int, end: int) -> None:
            device.sleep_until_target(len(own.indices), began, positions[begin])
            offer(begin, end)

        return paced

    @torch.no_grad()
    def _flip(self) -> None:
        """The parameters are the newest weights."""
        views = self._sides[self._channel.step % 2]
        for parameter, view in zip(self._parameters.values(), views, strict=True):
            parameter.data = view


def answered(work: Callable[[], StreamedAnswer]) -> StreamedAnswer:
    """What ``work`` answers; an error of the job's is an answer, and so is a shard that can't be reached."""
    try:
        return work()
    except (JobError, LossNotFinite) as error:
        return Failed.of(error)
    except TrainingError as error:
        return ShardLinkDown(cause=str(error))


def streamed(
    result: SliceLoss, entered: float, computed: float, pushed: float, bytes_out: int, bytes_in: int
) -> StreamedResult:
    """The result of a call that was entered, had computed, and had pushed at these moments, and ends now."""
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
    """For each gradient, which part of the slice's time had passed when it was there."""
    whole = max(moments) - began
    return [max(0.0, min(1.0, (moment - began) / whole)) if whole > 0 else 1.0 for moment in moments]
