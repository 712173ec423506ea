"""What a worker finds out before the first step: how long slices take, what they need, what the model does with it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.training import flat
from remote_agent.training.dataplane import Usage
from remote_agent.training.devices import memory
from remote_agent.training.devices.compute import SliceComputer
from remote_agent.training.messages import Measured
from remote_agent.training.speed.measure import SMALLEST

MEASUREMENTS_PER_SIZE = 3
"""Times that each size is measured, within the time limit; the fastest counts."""


class Profiler:
    """Measures a device with the job's own model and samples.

    Args:
        computer: computes the slices; its ``most`` is lowered to what fits into memory.
        model: what it computes.
        weights: the model's trained parameters.
        device: where it computes.
        samples: how many there are.
    """

    def __init__(
        self, computer: SliceComputer, model: nn.Module, weights: flat.FlatTensors, device: torch.device, samples: int
    ) -> None:
        self._computer, self._model, self._weights, self._device = computer, model, weights, device
        self._samples = samples
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
        buffers = {name: tensor.clone() for name, tensor in self._model.named_buffers()}
        before = [buffer.clone() for buffer in self._weights.flats]
        note = self._limit(sizes, batch)
        deadline = time.perf_counter() + seconds
        for wanted in range(2, MEASUREMENTS_PER_SIZE + 2):  # the first of each size is its warm-up
            for size in sizes:
                while len(self._seconds.get(size, ())) < wanted and (wanted == 2 or time.perf_counter() <= deadline):
                    self._compute(size)
        points = [(size, taken) for size in sizes for taken in self._seconds[size][1:]]
        after = dict(self._model.named_buffers())
        usage = Usage(
            never=frozenset.intersection(*self._unused),
            sometimes=frozenset.union(*self._unused) - frozenset.intersection(*self._unused),
            changed=_changed(self._weights, before),
            buffers=frozenset(name for name, tensor in after.items() if not torch.equal(tensor, buffers[name])),
        )
        with torch.no_grad():  # what was measured is not training: its statistics must not be in the model
            for name, tensor in after.items():
                tensor.copy_(buffers[name])
        return Measured(points=tuple(points), usage=usage, notes=(note,) if note else ())

    def _compute(self, size: int) -> None:
        """Compute a slice of ``size`` samples, and note how long it takes and who got no gradient."""
        indices = np.arange(size) % self._samples
        started = time.perf_counter()
        self._computer.compute(indices, seed=0)
        self._seconds.setdefault(size, []).append(time.perf_counter() - started)
        trained = flat.trained(self._model)
        self._unused.append(frozenset(name for name, parameter in trained.items() if parameter.grad is None))

    def _limit(self, sizes: Sequence[int], batch: int) -> str:
        """Lower what is computed at a time to what fits into memory. Returns a sentence for the plan."""
        largest = min(sizes[-1], self._computer.most or sizes[-1])
        limit = memory.find(self._device, self._compute, min(SMALLEST, largest), largest, batch)
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
