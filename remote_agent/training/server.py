"""The parameter server: a Ray actor with the weights, the job's optimizer, and each step's running gradient sum.

A step is: :meth:`ParameterServer.add` for each slice as it arrives (the transfer of an early slice overlaps the
computation of a late one, and memory does not grow with the number of workers), then :meth:`ParameterServer.apply`. A
slice counts once, whoever sends it and however often. Following Li et al., "Scaling Distributed Machine Learning with the Parameter
Server" (OSDI 2014), in its synchronous form.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import safetensors.torch
import torch
from torch import Tensor

from remote_agent.training import flat, job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.errors import TrainingError
from remote_agent.training.flat import Payload
from remote_agent.training.messages import Added, Applied, Failed, Incomplete, SliceResult, Stamps


class ParameterServer:
    """Weights on this host's CPU, in one flat buffer per dtype; the optimizer works on views into them."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(max(1, threads))
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def open(self, blob: bytes, state: bytes, config: TrainingConfig) -> Failed | None:
        """Build model and optimizer, with the run's initial ``state`` (safetensors)."""
        try:
            factory = job.guard("loading the job", job.loads, blob)
            self._model = job.create_model(factory, config.seed)
            self._model.load_state_dict(safetensors.torch.load(state), strict=False)
            self._weights = flat.FlatTensors(self._model)
            self._optimizer = job.create_optimizer(factory, self._model, config)
        except TrainingError as error:
            return Failed.of(error)
        self._gradients = [group.allocate() for group in self._weights.groups]
        self._gradient_views = [
            group.views(buffer) for group, buffer in zip(self._weights.groups, self._gradients, strict=True)
        ]
        self._step = 0
        return None

    def ping(self) -> None:
        """Answer."""

    def begin(self, buffer_names: Sequence[str]) -> Payload:
        """Before the first step: the buffers that training changes travel with the weights. Returns both."""
        self._buffers = flat.buffers(self._model, buffer_names)
        self._buffer_groups = flat.group(self._buffers)
        self._start_step()
        return self._published()

    def add(self, result: SliceResult, gradient: Payload) -> None:
        """Take one slice's gradient sum into the step's. A slice that is late or was counted already is dropped."""
        entered = time.monotonic()
        if result.step != self._step + 1 or result.index in self._added:
            return
        first = not self._added
        with torch.no_grad():
            for total, group, array in zip(self._gradients, self._weights.groups, gradient, strict=False):
                part = flat.from_bytes(array, group.dtype)
                if first:
                    total.copy_(part)
                else:
                    total.add_(part)
            self._add_buffers(result.samples, gradient[len(self._gradients) :])
        self._samples += result.samples
        self._unused = self._unused & set(result.unused) if not first else set(result.unused)
        self._added[result.index] = Added(stamps=Stamps(entered=entered, left=time.monotonic()))

    def apply(self, step: int, expected: Sequence[int]) -> tuple[Payload | None, Applied | Incomplete | Failed]:
        """Divide the sum by the samples, make the optimizer's step, publish the new weights.

        When a slice of ``expected`` has not arrived, nothing changes and its number comes back.
        """
        entered = time.monotonic()
        missing = tuple(index for index in expected if index not in self._added)
        if missing:
            return None, Incomplete(step=step, missing=missing)
        position = 0
        for total, members, views in zip(self._gradients, self._weights.parameters, self._gradient_views, strict=True):
            total.div_(self._samples)
            for parameter, view in zip(members, views, strict=True):
                # Without a gradient an optimizer leaves a parameter alone; with a zero it would still decay it.
                parameter.grad = None if position in self._unused else view
                position += 1
        try:
            job.guard("the optimizer's step", self._optimizer.step)
        except TrainingError as error:
            return None, Failed.of(error)
        self._write_buffers()
        added = self._added
        self._step = step
        self._start_step()
        return self._published(), Applied(step=step, stamps=Stamps(entered=entered, left=time.monotonic()), added=added)

    def _start_step(self) -> None:
        self._added: dict[int, Added] = {}
        self._unused: set[int] = set()
        self._samples = 0
        self._buffer_sums: list[Tensor] = []

    def _add_buffers(self, samples: int, arrays: Payload) -> None:
        """Float buffers are averaged by samples, as under data parallel training; of counters the largest is kept."""
        parts = [flat.from_bytes(array, group.dtype) for array, group in zip(arrays, self._buffer_groups, strict=True)]
        if not self._buffer_sums:
            self._buffer_sums = [part * samples if part.is_floating_point() else part.clone() for part in parts]
            return
        for total, part in zip(self._buffer_sums, parts, strict=True):
            if part.is_floating_point():
                total.add_(part, alpha=samples)
            else:
                torch.maximum(total, part, out=total)

    def _write_buffers(self) -> None:
        for total, group in zip(self._buffer_sums, self._buffer_groups, strict=True):
            if total.is_floating_point():
                total.div_(self._samples)
            for name, view in zip(group.names, group.views(total), strict=True):
                self._buffers[name].copy_(view)

    def _published(self) -> Payload:
        arrays = [flat.to_bytes(buffer) for buffer in self._weights.flats]
        for group in self._buffer_groups:
            arrays.append(flat.to_bytes(torch.cat([self._buffers[name].reshape(-1) for name in group.names])))
        return tuple(arrays)
