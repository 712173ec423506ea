"""Measures before the first step how long slices take, what they need, and what the model does with its tensors."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.planning.device_profile import SMALLEST
from remote_agent.training.errors import JobError, TooLarge, TrainingError
from remote_agent.training.shared import flat
from remote_agent.training.shared.dataplane import Usage
from remote_agent.training.shared.messages import Measured, Slice
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code import losses
from remote_agent.training.worker.device import costs, memory, trained
from remote_agent.training.worker.device.compute import SliceComputer
from remote_agent.training.worker.device.costs import ReadyTimes

MOST_PARTS = 50
"""Slices of other samples that are computed, where the first ones have a loss without a gradient."""

OTHERS = "; {count} of the same samples at a time can be computed"
OTHERS_HINT = (
    "loss is called with parts of a batch, of any number of samples: take the number from the batch (x.shape[0]), and"
    " begin a hidden state anew in each call"
)

RESIZED = "compute the loss of one batch in create_model, so that it has its shape when training begins"
"""What to do about a buffer that gets its shape in the first call, as the observers of quantization do."""

SLICE_S = 5.0
"""Seconds of the largest slice that is measured: larger ones would say nothing more of a device that is so slow."""

MEASUREMENTS_PER_SIZE = 7
"""Times that each size is measured, within the time limit; the median counts."""


class Profiler:
    """Measures a device with the job's own model and samples.

    Args:
        computer: computes the slices; its ``most`` is lowered to what fits into memory.
        samples: indices of those that it is measured with.
    """

    def __init__(
        self,
        computer: SliceComputer,
        model: nn.Module,
        weights: flat.FlatTensors,
        device: torch.device,
        samples: Indices,
    ) -> None:
        self._computer, self._model, self._weights, self._device = computer, model, weights, device
        self._samples = samples
        self._loss, self._batch = 0.0, 0
        self._unused: list[frozenset[str]] = []
        self._seconds: dict[int, list[float]] = {}

    def measure(self, sizes: Sequence[int], seconds: float, batch: int) -> Measured:
        """Find what fits into memory, then time slices of these sizes, within about ``seconds``, after a warm-up.

        Args:
            sizes: in samples, in rising order.
            seconds: for the timing; each size is timed once in any case.
            batch: the run's: no slice will be larger.

        Raises:
            JobError: the job's loss, model or data raised, or a single sample does not fit into memory.
        """
        self._batch = batch
        state = flat.state(self._model)
        kept = {name: tensor.detach().clone() for name, tensor in state.items()}
        before = [buffer.clone() for buffer in self._weights.flats]
        note = self._limit(sizes, batch)
        sizes = sorted({min(size, self._bearable()) for size in sizes})
        deadline = time.perf_counter() + seconds
        for wanted in range(2, MEASUREMENTS_PER_SIZE + 2):  # the first of each size is its warm-up
            for size in sizes:
                while len(self._seconds.get(size, ())) < wanted and (wanted == 2 or time.perf_counter() <= deadline):
                    self._compute(size)
        ready = self._ready_curve(sizes[-1])
        for name, tensor in state.items():
            if tensor.shape != kept[name].shape:
                old, new = list(kept[name].shape), list(tensor.shape)
                raise JobError(f"the model's code changes the shape of {name} from {old} to {new}", hint=RESIZED)
        if not self._has_gradient():
            self._look_for_gradient(sizes[-1])
        points = [(size, taken) for size in sizes for taken in self._seconds[size][1:]]
        usage = Usage(
            never=frozenset.intersection(*self._unused),
            sometimes=frozenset.union(*self._unused) - frozenset.intersection(*self._unused),
            changed=_changed(self._weights, before),
            buffers=frozenset(name for name, tensor in state.items() if not same_numbers(tensor, kept[name])),
            terms=self._computer.seen,
        )
        # What was measured is not training: nothing of it must be in the model.
        with torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(kept[name])
            for buffer, first in zip(self._weights.flats, before, strict=True):
                buffer.copy_(first)
        for parameter in self._model.parameters():
            parameter.grad = None
        return Measured(
            points=tuple(points),
            usage=usage,
            loss=self._loss if math.isfinite(self._loss) else 0.0,
            notes=(note,) if note else (),
            costs=costs.costs(flat.trained(self._model), self._device, ready),
        )

    def _has_gradient(self) -> bool:
        return frozenset.intersection(*self._unused) != flat.trained(self._model).keys()

    def _look_for_gradient(self, size: int) -> None:
        """Compute other samples, as long as no parameter gets a gradient; raises JobError if none of them gives one."""
        parts = np.array_split(self._samples, -(-len(self._samples) // size))
        for part in parts[:: -(-len(parts) // MOST_PARTS)]:
            self._compute(len(part), part)
            if self._has_gradient():
                return
        raise JobError(losses.CONSTANT, hint=losses.CONSTANT_HINT)

    def _bearable(self) -> int:
        """Samples of a slice that takes :data:`SLICE_S`; at least of the smallest one that was computed."""
        return max(min(self._seconds), int(SLICE_S / self._each_s()))

    def _each_s(self) -> float:
        """Seconds of a sample in the largest slices so far."""
        size = max(self._seconds)
        return max(min(self._seconds[size]), 1e-9) / size

    def _compute(self, size: int, chosen: Indices | None = None) -> None:
        """Compute a slice of ``size`` samples, and note how long it takes and which parameters got no gradient.

        ``chosen``: of these; None: of the first ones.
        """
        indices = np.resize(self._samples, size) if chosen is None else chosen
        started = time.perf_counter()
        try:
            self._loss = self._computer.compute(0, Slice.whole(indices)).loss
        except JobError as error:
            if isinstance(error, TooLarge):
                raise
            raise self._explained(error, indices) from error
        trained.refuse_sparse(self._model)
        self._seconds.setdefault(size, []).append(time.perf_counter() - started)
        parameters = flat.trained(self._model)
        self._unused.append(frozenset(name for name, parameter in parameters.items() if parameter.grad is None))

    def _explained(self, error: JobError, indices: Indices) -> JobError:
        """The ``error`` of a slice; it says so where the same samples can be computed, more or fewer at a time."""
        size, most = len(indices), self._computer.most
        for count in {self._batch, min(self._seconds, default=self._batch)} - {size, 0}:
            parts = np.split(np.resize(self._samples, max(count, size)), range(count, size, count))
            self._computer.most = None  # all of a part together
            with contextlib.suppress(TrainingError):
                for part in parts:
                    self._computer.compute(0, Slice.whole(part))
                if self._computer.most is None:  # they were, as there was memory for that
                    return JobError(f"{error.cause}{OTHERS.format(count=count)}", hint=OTHERS_HINT, detail=error.detail)
        self._computer.most = most
        return error

    def _ready_curve(self, size: int) -> tuple[float, ...]:
        """When gradients are there, in one more slice of ``size`` samples."""
        times = ReadyTimes(flat.trained(self._model))
        with times.noting():
            began = time.perf_counter()
            self._compute(size)
            return times.curve(began, time.perf_counter())

    def _limit(self, sizes: Sequence[int], batch: int) -> str:
        """Lower what is computed at a time to what fits into memory. Returns a sentence for the plan."""
        largest = min(sizes[-1], self._computer.most or sizes[-1])
        limit = memory.find(
            self._device, self._compute, min(SMALLEST, largest), lambda: min(largest, self._bearable()), batch
        )
        most = self._computer.most
        if limit.most is not None and (most is None or limit.most < most):
            self._computer.most = limit.most
        elif not self._computer.reduced():
            return ""
        each = f"a sample takes {limit.each / memory.MIB:.1f} MiB, " if limit.each else ""
        return f"at most {self._computer.most} samples at a time: {each}{limit.budget / memory.MIB:.0f} MiB may be used"


def _changed(weights: flat.FlatTensors, before: Sequence[Tensor]) -> frozenset[str]:
    """The parameters that are not what they were."""
    return frozenset(
        name
        for group, now, then in zip(weights.groups, weights.flats, before, strict=True)
        for name, new, old in zip(group.names, group.views(now), group.views(then), strict=True)
        if not torch.equal(new, old)
    )


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are equal; NaN is equal to NaN."""
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and bool(((one == other) | (one.isnan() & other.isnan())).all())
