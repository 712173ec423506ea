"""A worker's slices where weights and gradients travel as Ray objects: whatever does not fit a flat float32 buffer."""

from __future__ import annotations

import time

import torch
from torch import nn

from remote_agent.training import flat
from remote_agent.training.devices import device as devices
from remote_agent.training.devices.compute import SliceComputer
from remote_agent.training.errors import TrainingError
from remote_agent.training.flat import FlatTensors, Payload
from remote_agent.training.messages import Failed, Skipped, SliceResult, SliceTask, Stamps


class ObjectSteps:
    """Weights come with each call, and gradients leave with its answer.

    Args:
        model: on the device.
        weights: its trained parameters, one flat buffer per dtype.
        device: where the model is.
        compute_slice: leaves a slice's gradient sums in the model.

    Attributes:
        buffer_names: the buffers that travel with the weights.
    """

    def __init__(
        self, model: nn.Module, weights: FlatTensors, device: torch.device, compute_slice: SliceComputer
    ) -> None:
        self.buffer_names: tuple[str, ...] = ()
        self._model, self._weights, self._device, self._compute_slice = model, weights, device, compute_slice
        self._gradients = [group.allocate(device) for group in weights.groups]
        self._gradient_views = [
            group.views(buffer) for group, buffer in zip(weights.groups, self._gradients, strict=True)
        ]

    def release(self) -> None:
        """Let the memory for gradients go: from now on they travel another way."""
        self._gradients, self._gradient_views = [], []

    def compute(
        self, task: SliceTask, weights: Payload | None
    ) -> tuple[Payload | None, SliceResult | Failed | Skipped]:
        """See :meth:`~remote_agent.training.working.worker.Worker.compute`."""
        entered = time.monotonic()
        if weights is None:
            return None, Skipped()
        self.load(weights)
        devices.synchronize(self._device)
        started = time.perf_counter()
        load_s = time.monotonic() - entered
        try:
            loss = self._compute_slice(task.step, task.index, task.indices)
        except TrainingError as error:
            return None, Failed.of(error)
        computed = time.perf_counter()
        payload, unused = self._pack()
        return payload, SliceResult(
            step=task.step,
            index=task.index,
            samples=len(task.indices),
            loss=loss,
            load_s=load_s,
            compute_s=computed - started,
            pack_s=time.perf_counter() - computed,
            unused=unused,
            stamps=Stamps(entered=entered, left=time.monotonic()),
            at_most=self._compute_slice.reduced(),
        )

    def load(self, weights: Payload) -> None:
        """Copy the weights (and changed buffers) that arrived into the model."""
        with torch.no_grad():
            for buffer, group, array in zip(self._weights.flats, self._weights.groups, weights, strict=False):
                buffer.copy_(flat.from_bytes(array, group.dtype))
            present = flat.buffers(self._model, self.buffer_names)
            for group, array in zip(flat.group(present), weights[len(self._weights.flats) :], strict=True):
                for name, view in zip(group.names, group.views(flat.from_bytes(array, group.dtype)), strict=True):
                    present[name].copy_(view)

    def _pack(self) -> tuple[Payload, tuple[int, ...]]:
        """Gradients (and changed buffers) as flat arrays, and the positions of parameters without a gradient."""
        unused: list[int] = []
        position = 0
        for members, views in zip(self._weights.parameters, self._gradient_views, strict=True):
            targets, sources = [], []
            for parameter, view in zip(members, views, strict=True):
                if parameter.grad is None:
                    unused.append(position)
                    view.zero_()
                else:
                    targets.append(view)
                    sources.append(parameter.grad)
                position += 1
            torch._foreach_copy_(targets, sources)
        arrays = [flat.to_bytes(buffer) for buffer in self._gradients]
        return (*arrays, *flat.gather(flat.buffers(self._model, self.buffer_names))), tuple(unused)
