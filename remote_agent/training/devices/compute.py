"""A device computes slices: the samples fetched, forward, backward; the gradient SUM stays with the parameters.

A slice's randomness (dropout) is seeded by (run, step, slice): the same whoever computes it, and however often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.training import flat, job
from remote_agent.training.data import datasets
from remote_agent.training.data.order import Indices
from remote_agent.training.devices import device as devices
from remote_agent.training.devices.loss_scaling import LossScale
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.speed.simulation import SimulatedDevice


class SliceComputer:
    """Computes slices of one model on one device, in parts that fit into its memory.

    A slice may have to be computed again from its beginning: in smaller parts where the memory was full, with a smaller
    scale of the loss where float16 overflowed. Its random numbers are the same again, and buffers that training changes
    are set back.

    Args:
        model: on ``device``, in training mode.
        loss: mean loss of a batch.
        data: what :func:`~remote_agent.training.data.datasets.fetch` takes batches from.
        device: where it computes.
        seed: the run's.
        most: see the attribute.
        dtype: what forward and backward are autocast to; None: nothing.

    Attributes:
        most: samples that are computed at a time; a larger slice is accumulated. None: any.
        simulated: whose pace is kept; None: as fast as it goes.
        changing: names of the model's buffers that training changes.
        on_last: called with the slice's mean loss before the backward that makes its gradients final, where nothing but
            full memory can still have the slice computed again. Not with loss scaling.
        on_repeat: called before a slice is computed again: what was accumulated is void.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Tensor],
        data: Any,
        device: torch.device,
        seed: int,
        most: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.most = most
        self._reduced = False
        self.simulated: SimulatedDevice | None = None
        self.changing: Sequence[str] = ()
        self.on_last: Callable[[float], None] | None = None
        self.on_repeat: Callable[[], None] | None = None
        self._model, self._loss, self._data, self._device = model, loss, data, device
        self._seed, self._dtype = seed, dtype
        self._parameters = list(flat.trained(model).values())
        self._scale = LossScale(self._parameters) if dtype is torch.float16 else None

    def __call__(self, step: int, index: int, indices: Indices) -> float:
        """Compute slice ``index`` of ``step``: leave the gradient sum over ``indices``, shape ``(samples,)``.

        Returns:
            The mean loss.

        Raises:
            JobError: the job's loss, model or data raised, or a single sample does not fit into memory.
        """
        started = time.perf_counter()
        loss = self.compute(indices, slice_seed(self._seed, step, index))
        if self.simulated is not None:
            self.simulated.sleep_until_target(len(indices), started)
        return loss

    def compute(self, indices: Indices, seed: int) -> float:
        """As a call, with random numbers from ``seed``; when it returns the device is done."""
        buffers = flat.buffers(self._model, self.changing) if self.changing else {}
        before = {name: tensor.clone() for name, tensor in buffers.items()}
        while True:
            torch.manual_seed(seed)
            loss = self._attempt(indices)
            if loss is None:
                self._compute_less_at_a_time(len(indices))
            elif self._scale is None or not math.isfinite(loss) or self._scale.settle():
                devices.synchronize(self._device)
                return loss
            with torch.no_grad():
                for name, tensor in buffers.items():
                    tensor.copy_(before[name])
            if self.on_repeat is not None:
                self.on_repeat()

    def _attempt(self, indices: Indices) -> float | None:
        """Forward and backward; None: the memory is full. What the failure held is free again after that."""
        try:
            return self._forward_backward(indices)
        except TrainingError:
            raise
        except Exception as error:
            if not devices.is_out_of_memory(error) or self._at_a_time(len(indices)) == 1:
                raise job.as_job_error("loss", error) from error
            return None

    def _forward_backward(self, indices: Indices) -> float:
        for parameter in self._parameters:
            parameter.grad = None
        total: Tensor | None = None
        done = 0
        for part in self._parts(indices):
            batch = devices.move(datasets.fetch(self._data, part), self._device)
            with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
                loss = self._loss(self._model, batch)
            summed = loss * len(part)
            total = summed.detach() if total is None else total + summed.detach()
            done += len(part)
            if self._scale is not None:
                self._scale.backward(loss, len(part))
                continue
            if done == len(indices) and self.on_last is not None:
                self.on_last(float(total) / done)
            summed.backward()  # type: ignore[no-untyped-call]
        if total is None:
            raise JobError("a slice without samples can't be computed")
        return float(total) / len(indices)

    def _parts(self, indices: Indices) -> Iterator[Indices]:
        """As few parts as possible, of sizes as equal as possible: batch normalisation can't use a single sample."""
        count = math.ceil(len(indices) / self._at_a_time(len(indices)))
        return iter(np.array_split(indices, count))

    def _at_a_time(self, samples: int) -> int:
        return min(samples, self.most or samples)

    def _compute_less_at_a_time(self, samples: int) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        devices.release_memory(self._device)
        self.most, self._reduced = self._at_a_time(samples) // 2, True

    def reduced(self) -> int:
        """``most``, if it was lowered since the last time that this was asked, because memory was full; else 0."""
        lowered, self._reduced = self._reduced, False
        return self.most or 0 if lowered else 0


def slice_seed(seed: int, step: int, index: int) -> int:
    """Seed of a slice's randomness: the same whoever computes it, and however often."""
    return int(np.random.SeedSequence((seed, step, index)).generate_state(1, np.uint64)[0] >> np.uint64(1))
