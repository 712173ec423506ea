"""The worker's part in a streamed step: parameters are views of weights, gradients land where they are sent from."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from remote_agent.training import flat
from remote_agent.training.channels import Channel
from remote_agent.training.deadlines import EXCHANGE_S, REPAIR_S
from remote_agent.training.errors import JobError, LossNotFinite, TrainingError
from remote_agent.training.messages import Counted, Failed, Stamps, StreamedResult, StreamedTask, Unlinked
from remote_agent.training.order import Indices

Compute = Callable[[int, int, Indices], float]
"""From (step, slice, indices) to the mean loss, leaving the gradient sum with the parameters."""


class Gradients:
    """Puts each parameter's gradient into a flat buffer the moment that backward has it, while it is in the cache.

    Args:
        parameters: in the order of the buffer.
        watched: parameters that are not in the buffer, by name: they must not get a gradient.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], watched: dict[str, nn.Parameter]) -> None:
        self._names = list(parameters)
        self._shapes = [parameter.shape for parameter in parameters.values()]
        self._watched = watched
        self._views: Sequence[Tensor] = ()
        self._written: list[bool] = []
        for position, parameter in enumerate(parameters.values()):
            parameter.register_post_accumulate_grad_hook(self._hook(position))  # type: ignore[no-untyped-call]

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Views into ``buffer``, one for each parameter."""
        parts = torch.split(buffer, [shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def begin(self, views: Sequence[Tensor]) -> None:
        """The next gradients go to ``views``; further ones of the same parameter are added."""
        self._views = views
        self._written = [False] * len(self._names)
        for parameter in self._watched.values():
            parameter.grad = None

    def check(self) -> None:
        """After backward: each parameter has a gradient exactly when it had one in the measurement.

        Raises:
            JobError: it does not, and the buffer would be wrong.
        """
        hint = "a model that uses its parameters by turns trains with stream=off"
        for name, written in zip(self._names, self._written, strict=True):
            if not written:
                raise JobError(f"the parameter {name} got no gradient, unlike in the measurement", hint=hint)
        for name, parameter in self._watched.items():
            if parameter.grad is not None:
                raise JobError(f"the parameter {name} got its first gradient after the measurement", hint=hint)

    def _hook(self, position: int) -> Callable[[Tensor], None]:
        def accumulated(parameter: Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None, "the hook runs when there is one"
            if self._written[position]:
                self._views[position].add_(gradient)
            else:
                self._views[position].copy_(gradient)
                self._written[position] = True
            parameter.grad = None

        return accumulated


class Streaming:
    """One worker's streamed steps. :meth:`step` is called by one thread, :meth:`repair` may be by another meanwhile.

    Args:
        model: the model; its parameters become views of the channel's weights.
        names: of the parameters in the buffer, in its order.
        watched: names of those that must not get a gradient.
        channel: the way to the shards.
        compute: computes one slice.

    Attributes:
        contributed: the last step whose slice (if it had one) this worker has contributed.
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
        self._computing = threading.Lock()
        self._begun = threading.Condition()
        self.contributed = channel.step
        self._flip()

    def step(self, task: StreamedTask) -> StreamedResult | Failed | Unlinked:
        """Compute the task's slice (if it has one), contribute it, and wait for the new weights."""
        entered = computed = time.monotonic()
        loss = 0.0
        try:
            self._channel.begin(task.step, task.slices, task.samples)
            if task.own is not None:
                with self._computing:
                    loss = self._gradient_of(task, self._own)
                    computed = time.monotonic()
                    self._channel.contribute(task.own.index)
            with self._begun:
                self.contributed = task.step
                self._begun.notify_all()
            timings = self._channel.finish(EXCHANGE_S)
            with self._computing:
                self._flip()
        except (JobError, LossNotFinite) as error:
            return Failed.of(error)
        except TrainingError as error:
            return Unlinked(cause=str(error))
        left = time.monotonic()
        return StreamedResult(
            step=task.step,
            loss=loss,
            compute_s=computed - entered,
            pushed=computed + timings.push_s,
            bytes_out=timings.bytes_out,
            bytes_in=timings.bytes_in,
            stamps=Stamps(entered=entered, left=left),
        )

    def repair(self, task: StreamedTask) -> StreamedResult | Counted | Failed | Unlinked:
        """Compute a slice that another worker has lost, with the same weights, and contribute it.

        It waits until this worker is in the step itself. A step that is whole had the slice after all.
        """
        assert task.own is not None, "a slice is repaired"
        with self._begun:
            if not self._begun.wait_for(lambda: self.contributed >= task.step, REPAIR_S):
                return Unlinked(cause=f"step {task.step} did not begin here within {REPAIR_S:g} s")
        entered = time.monotonic()
        try:
            with self._computing:
                if self._channel.step >= task.step:
                    return Counted()
                gradient = self._channel.spare()
                loss = self._gradient_of(task, self._gradients.views(gradient))
                computed = time.monotonic()
                self._channel.contribute_spare(task.own.index, gradient)
        except (JobError, LossNotFinite) as error:
            return Failed.of(error)
        except TrainingError as error:
            return Unlinked(cause=str(error))
        size = gradient.numel() * gradient.element_size()
        return StreamedResult(
            step=task.step,
            loss=loss,
            compute_s=computed - entered,
            pushed=time.monotonic(),
            bytes_out=size,
            bytes_in=0,
            stamps=Stamps(entered=entered, left=time.monotonic()),
        )

    def _gradient_of(self, task: StreamedTask, views: Sequence[Tensor]) -> float:
        """Leave the gradient sum of the task's slice in ``views`` and return the mean loss."""
        assert task.own is not None, "the task has a slice"
        self._gradients.begin(views)
        loss = self._compute(task.step, task.own.index, task.own.indices)
        self._finite(loss, len(task.own.indices))
        self._gradients.check()
        return loss

    def _finite(self, loss: float, samples: int) -> None:
        if not math.isfinite(loss):
            raise LossNotFinite.of(loss, samples)

    @torch.no_grad()
    def _flip(self) -> None:
        """The parameters are the newest weights."""
        views = self._sides[self._channel.step % 2]
        for parameter, view in zip(self._parameters.values(), views, strict=True):
            parameter.data = view
