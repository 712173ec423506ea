"""The worker: a Ray actor that owns one device, measures it, and turns slices into gradient sums."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from remote_agent.training import data as datasets
from remote_agent.training import device as devices
from remote_agent.training import flat, job
from remote_agent.training.channels import Door, open_channel, place
from remote_agent.training.config import TrainingConfig
from remote_agent.training.dataplane import StreamPlan, Usage
from remote_agent.training.errors import TrainingError
from remote_agent.training.exchange import Codecs, Layout
from remote_agent.training.flat import Payload
from remote_agent.training.local_rounds import LocalRounds
from remote_agent.training.messages import (
    Counted,
    Failed,
    Measured,
    Opened,
    Skipped,
    SliceResult,
    SliceTask,
    Stamps,
    StreamedResult,
    StreamedTask,
    Unlinked,
)
from remote_agent.training.order import Indices
from remote_agent.training.shares import DeviceProfile
from remote_agent.training.simulation import SimulatedDevice, simulated_speed
from remote_agent.training.streaming import Streaming

MEASUREMENTS_PER_SIZE = 3
"""Times that each size is measured, within the time limit; the fastest counts."""


REPAIR, PING = "repair", "ping"
GROUPS = (REPAIR, PING)
"""Calls that are carried out while a step is under way: :meth:`Worker.repair` and :meth:`Worker.ping`."""


class Worker:
    """One device's worker.

    A slice is computed by :meth:`compute`, with weights that arrive with the call, or (when weights and gradients are
    streamed) as a part of :meth:`step`, with the weights that the step before brought.
    """

    def __init__(self, device: str, threads: int) -> None:
        torch.set_num_threads(max(1, threads))
        # The object store's arrays are read-only, and so are our uses of them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        self._wanted = device
        self._simulated: SimulatedDevice | None = None
        self._buffer_names: tuple[str, ...] = ()
        self._streaming: Streaming | None = None

    def open(
        self, blob: bytes, data: Any, state: bytes, config: TrainingConfig, max_batch: int | None
    ) -> Opened | Failed:
        """Build the job's model on the device, with the run's initial ``state`` (safetensors)."""
        try:
            self._device = devices.find(self._wanted)
            factory = job.guard("loading the job", job.loads, blob)
            model = job.create_model(factory, config.seed)
            model.load_state_dict(safetensors.torch.load(state), strict=False)
            self._model = model.to(self._device).train()
            self._loss = job.loss_function(factory)
            self._factory = factory
            speed = simulated_speed()
        except TrainingError as error:
            return Failed.of(error)
        except ValueError as error:
            return Failed(cause=str(error))
        self._data, self._config, self._max_batch = data, config, max_batch
        self._weights = flat.FlatTensors(self._model, self._device)
        self._gradients = [group.allocate(self._device) for group in self._weights.groups]
        self._gradient_views = [
            group.views(buffer) for group, buffer in zip(self._weights.groups, self._gradients, strict=True)
        ]
        return Opened(machine=machine_id(), device=str(self._device), simulated_speed=speed)

    def measure(self, sizes: Sequence[int], seconds: float) -> Measured | Failed:
        """Time slices of these sizes on real samples, after a warm-up, within about ``seconds``."""
        before = {name: tensor.clone() for name, tensor in self._model.named_buffers()}
        weights = [buffer.clone() for buffer in self._weights.flats]
        points: list[tuple[int, float]] = []
        unused: list[frozenset[str]] = []
        try:
            for size in sizes:
                self._timed(np.arange(size) % len(self._data))
                unused.append(self._without_gradient())
            deadline = time.perf_counter() + seconds
            for _ in range(MEASUREMENTS_PER_SIZE):
                for size in sizes:
                    if len(points) >= len(sizes) and time.perf_counter() > deadline:
                        break
                    points.append((size, self._timed(np.arange(size) % len(self._data))))
                    unused.append(self._without_gradient())
        except TrainingError as error:
            return Failed.of(error)
        after = dict(self._model.named_buffers())
        usage = Usage(
            never=frozenset.intersection(*unused),
            sometimes=frozenset.union(*unused) - frozenset.intersection(*unused),
            changed=self._changed(weights),
            buffers=frozenset(name for name, tensor in after.items() if not torch.equal(tensor, before[name])),
        )
        return Measured(points=tuple(points), usage=usage)

    def ping(self) -> int:
        """Answer with the last streamed step that this worker has done its part of."""
        return self._streaming.contributed if self._streaming is not None else 0

    def prepare(self, buffer_names: Sequence[str], reference: DeviceProfile | None) -> None:
        """Before the first slice: the buffers that travel with the weights, and a simulated device's reference."""
        self._buffer_names = tuple(buffer_names)
        speed = simulated_speed()
        if speed is not None and reference is not None:
            self._simulated = SimulatedDevice(speed, reference)

    def compute(
        self, task: SliceTask, weights: Payload | None
    ) -> tuple[Payload | None, SliceResult | Failed | Skipped]:
        """The gradient SUM over the slice's samples, and the slice's outcome.

        Args:
            task: which samples.
            weights: the groups of trained parameters, then of changed buffers, as bytes; None: the step before failed.

        Returns:
            Payload in the layout of ``weights`` (gradients in place of parameters), and the result.
        """
        entered = time.monotonic()
        if weights is None:
            return None, Skipped()
        self._load(weights)
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
        )

    # --- Streamed ----------------------------------------------------------------------------------------------------

    def place(self) -> str:
        """Where this process is; see :func:`~remote_agent.training.channels.place`."""
        return place()

    def join(
        self, plan: StreamPlan, layout: Layout, doors: Sequence[Door], secret: bytes, codecs: Codecs
    ) -> str | Failed:
        """Connect to the shards, before the first step. Returns the kind of channel, in words."""
        parameters = flat.trained(self._model)
        weights = torch.cat([parameters[name].detach().reshape(-1) for name in plan.names])
        self._weights.flats.clear()  # the channel has its own, and for gradients too
        self._gradients, self._gradient_views = [], []
        for parameter in parameters.values():
            parameter.grad = None
        try:
            channel = open_channel(layout, doors, secret, weights, codecs)
            parts = (self._model, plan.names, plan.watched, channel, self._compute_slice)
            if self._config.strategy == "local_sgd":
                optimizer = job.create_optimizer(self._factory, self._model, self._config)
                self._streaming = LocalRounds(*parts, optimizer)
            else:
                self._streaming = Streaming(*parts)
        except TrainingError as error:
            return Failed.of(error)
        return channel.kind

    def step(self, task: StreamedTask) -> StreamedResult | Failed | Unlinked:
        """This worker's part in a streamed step; see :meth:`Streaming.step`."""
        assert self._streaming is not None, "the worker has joined"
        return self._streaming.step(task)

    def repair(self, task: StreamedTask) -> StreamedResult | Counted | Failed | Unlinked:
        """A slice that another worker has lost; see :meth:`Streaming.repair`."""
        assert self._streaming is not None, "the worker has joined"
        return self._streaming.repair(task)

    def weights(self) -> Payload:
        """The trained parameters as they are now, by dtype."""
        return flat.gather(flat.trained(self._model))

    def _compute_slice(self, step: int, index: int, indices: Indices) -> float:
        started = time.perf_counter()
        torch.manual_seed(slice_seed(self._config.seed, step, index))
        loss = self._forward_backward(indices)
        devices.synchronize(self._device)
        if self._simulated is not None:
            self._simulated.sleep_until_target(len(indices), started)
        return loss

    # --- Computing ---------------------------------------------------------------------------------------------------

    def _without_gradient(self) -> frozenset[str]:
        return frozenset(name for name, parameter in flat.trained(self._model).items() if parameter.grad is None)

    def _changed(self, before: Sequence[Tensor]) -> frozenset[str]:
        """The parameters that are not what they were."""
        return frozenset(
            name
            for group, now, then in zip(self._weights.groups, self._weights.flats, before, strict=True)
            for name, new, old in zip(group.names, group.views(now), group.views(then), strict=True)
            if not torch.equal(new, old)
        )

    def _timed(self, indices: Indices) -> float:
        devices.synchronize(self._device)
        started = time.perf_counter()
        self._forward_backward(indices)
        devices.synchronize(self._device)
        return time.perf_counter() - started

    def _forward_backward(self, indices: Indices) -> float:
        """Leave the gradient sum over ``indices`` in the parameters' ``grad``; return the mean loss.

        More samples than fit into memory (a reissued slice can be larger than this device's own) are accumulated.
        """
        for members in self._weights.parameters:
            for parameter in members:
                parameter.grad = None
        total: Tensor | None = None
        most = self._max_batch or len(indices)
        try:
            for begin in range(0, len(indices), most):
                part = indices[begin : begin + most]
                batch = devices.move(datasets.fetch(self._data, part), self._device)
                loss = self._loss(self._model, batch) * len(part)
                loss.backward()  # type: ignore[no-untyped-call]
                total = loss.detach() if total is None else total + loss.detach()
        except Exception as error:
            raise job.as_job_error("loss", error) from error
        assert total is not None, "a slice holds at least one sample"
        return float(total) / len(indices)

    def _load(self, weights: Payload) -> None:
        """Copy the weights (and changed buffers) that arrived into the model."""
        with torch.no_grad():
            for buffer, group, array in zip(self._weights.flats, self._weights.groups, weights, strict=False):
                buffer.copy_(flat.from_bytes(array, group.dtype))
            present = flat.buffers(self._model, self._buffer_names)
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
        return (*arrays, *flat.gather(flat.buffers(self._model, self._buffer_names))), tuple(unused)


def slice_seed(seed: int, step: int, index: int) -> int:
    """Seed of a slice's randomness: the same whoever computes it, and however often."""
    return int(np.random.SeedSequence((seed, step, index)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def machine_id() -> str:
    """Names the physical computer: machines that share it share its cores, so they are measured one after the other."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else f"{uuid.getnode():x}"
