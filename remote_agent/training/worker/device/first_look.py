"""A worker's look at the run's first samples: what it makes of them is compared with what the other workers make.

Each process takes the same samples with the same random numbers, and computes the loss of some in evaluation mode with
the first weights. See :mod:`~remote_agent.training.shared.job_fingerprint`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.training import job
from remote_agent.training.data import datasets
from remote_agent.training.errors import TrainingError
from remote_agent.training.shared import flat
from remote_agent.training.shared.flat import HALVES
from remote_agent.training.shared.job_fingerprint import SOME, FirstLoss, JobFingerprint, Numbers
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code import seeding
from remote_agent.training.user_code.losses import mean_of
from remote_agent.training.user_code.user_errors import LOSS, is_out_of_memory
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device import held_values
from remote_agent.training.worker.device.batches import DEPTH
from remote_agent.training.worker.device.comparing import NOISE, spread
from remote_agent.training.worker.device.compute import SliceComputer, seed_everything
from remote_agent.training.worker.device.untouched import generators, modes_kept, stirred, untouched

SAMPLES = 12
"""Samples that are compared, at most."""

SECONDS = 2.0
"""For these, beyond the first two."""

TOGETHER, GROUPS = 2, 3
"""Samples whose loss is computed together: few, since some devices have room for few; and how often, since two losses
may be near to each other by chance."""

EXACT = 1024
"""Whole numbers that have to be the same one by one; a larger tensor of them may be an image's mask."""

TOLERANCE, COARSE = 1e-3, 5e-2
"""The most that the loss may differ, as a part of itself; and where weights are in half precision, or frozen, so that
they can't be changed by :data:`EPSILON`."""

LEAST = 1e-3
"""The least that it may differ, since a loss may be nothing but rounding; and what that does where it is not tried."""

EPSILON = 2.0**-8
"""What each weight is changed by, as a part of itself, to see what rounding does to the loss: as bfloat16 rounds."""

MARGIN = 5.0
"""Times as much as that the loss may differ."""


def look(
    model: nn.Module, computer: SliceComputer, samples: Indices, made: JobFingerprint, *, room: bool = True
) -> JobFingerprint:
    """What this process makes of some of the ``samples``; the model is as it was afterwards.

    After the measurement: what a first call of the loss changes by itself has to be seen by that.

    Args:
        model: with the first weights, in training mode.
        computer: for the device that the model is on.
        samples: indices of those of the first step.
        room: there is memory for a copy of the model. Without one, what rounding does is not tried.
    """
    if _is_by_host(computer.data):
        return made.without_loss()
    few = spread(samples, min(SAMPLES, len(samples)))
    with seeding.only_here(0):
        found = dataclasses.replace(made, samples=_samples(computer.data, few))
    try:
        return dataclasses.replace(found, loss=_first_loss(model, computer, few, room=room))
    except (TrainingError, RuntimeError, MemoryError) as error:  # there is no memory, or the loss needs more samples
        if is_out_of_memory(error):
            devices.release_memory(computer.device)
        return found


def _is_by_host(data: Any) -> bool:
    """Whether a data set, or the one in it, says that its samples are others on each host."""
    while data is not None and not hasattr(data, "by_host"):
        data = getattr(data, "dataset", None)
    return bool(getattr(data, "by_host", False))


# --- The samples -----------------------------------------------------------------------------------------------------


def _samples(data: Any, indices: Indices) -> dict[str, Numbers]:
    """The numbers of each sample by itself: how many are taken at a time differs by device."""
    found: dict[str, Numbers] = {}
    deadline = time.monotonic() + SECONDS
    for place, index in enumerate(indices.tolist()):
        if place >= TOGETHER and time.monotonic() > deadline:
            break
        try:
            once, again = (_taken(data, index, place) for _ in range(2))
        except TrainingError:
            continue  # the measurement says so, or a collate_fn needs several
        found.update((name, numbers) for name, numbers in once.items() if again.get(name) == numbers)
    return found


def _taken(data: Any, index: int, place: int) -> dict[str, Numbers]:
    batch = job.guard("the first samples", datasets.fetch, data, np.array([index], np.int64), 0, place)
    return {f"batch{path} of sample {index}": each for path, each in _numbers("", batch, DEPTH)}


def _numbers(path: str, value: Any, depth: int) -> Iterator[tuple[str, Numbers]]:
    if isinstance(value, bool | int | float | np.ndarray | np.number | Tensor):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # of text or objects, sparse
            yield path, _kept(torch.as_tensor(value).detach().cpu())
    elif isinstance(value, Mapping | list | tuple) and depth:
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, entry in islice(entries, held_values.MOST_ENTRIES):
            yield from _numbers(f"{path}[{key!r}]", entry, depth - 1)
    elif depth and held_values.is_own(value):
        for name, entry in list(vars(value).items()):
            yield from _numbers(f"{path}.{name}", entry, depth - 1)


def _kept(tensor: Tensor) -> Numbers:
    shape = tuple(tensor.shape)
    numbers = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1)
    whole = not numbers.is_floating_point() and numbers.dtype not in (torch.uint8, torch.bool)
    some = numbers[:: -(-len(numbers) // SOME) or 1].double().tolist()
    exact = flat.fingerprint(numbers.long()) if whole and len(numbers) <= EXACT else ""
    return Numbers(shape=shape, some=tuple(some), exact=exact)


# --- The loss --------------------------------------------------------------------------------------------------------


def _first_loss(model: nn.Module, computer: SliceComputer, indices: Indices, *, room: bool) -> FirstLoss | None:
    """The loss of these samples; None: it is random, or can't be had."""
    weights = [each for each in flat.trained(model).values() if each.is_floating_point()] if room else []
    frozen = [name for name, each in model.named_parameters() if not each.requires_grad]
    groups = [indices[begin : begin + TOGETHER] for begin in range(0, len(indices), TOGETHER)]
    groups = groups[: GROUPS if room else 1]
    coarse = bool(frozen) or any(each.dtype in HALVES for each in model.parameters())
    with untouched(model, computer.device, frozen if room else ()), stirred(model):
        probe = _Probe(model, computer, groups, weights, COARSE if coarse else TOLERANCE)
        try:
            found: FirstLoss | None = job.guard(LOSS, probe.look)
            return found
        finally:
            probe.put_back()
            for parameter in model.parameters():
                parameter.grad = None


class _Probe:
    """Computes the loss of a few samples, each time from the same weights.

    Args:
        groups: of samples.
        weights: that a call may change; empty: there is no room for a copy of them.
        tolerance: the most that the loss may differ, as a part of itself.
    """

    def __init__(
        self,
        model: nn.Module,
        computer: SliceComputer,
        groups: Sequence[Indices],
        weights: Sequence[nn.Parameter],
        tolerance: float,
    ) -> None:
        self._model, self._computer, self._groups = model, computer, groups
        self._weights, self._tolerance = weights, tolerance
        self._before = [each.detach().clone() for each in weights]

    def look(self) -> FirstLoss | None:
        try:
            with modes_kept(self._model):
                self._model.eval()
                try:
                    return self._seen(evaluating=True)
                finally:
                    self.put_back()  # a module's own train() may undo what its eval() did with these weights
        except Exception:  # noqa: BLE001 - many a model's output has another form there, and the loss raises
            return self._seen(evaluating=False)

    @torch.no_grad()
    def put_back(self) -> None:
        for each, value in zip(self._weights, self._before, strict=True):
            each.copy_(value)

    def _seen(self, *, evaluating: bool) -> FirstLoss | None:
        first, *others = self._groups
        value, device = self._loss(first, 1), self._computer.device
        drawn = not all(map(torch.equal, self._seeded, generators(device)))
        if not math.isclose(value, self._loss(first, 2), rel_tol=NOISE, abs_tol=1e-12):
            return None  # random, or not finite
        values = (value, *(self._loss(group, 1) for group in others))
        apart = LEAST
        if self._weights:
            apart = max(abs(self._rounded(group) - each) for group, each in zip(self._groups, values, strict=True))
        allowed = self._tolerance * max(map(abs, values)) + LEAST + MARGIN * apart
        return FirstLoss(values=values, allowed=allowed, evaluating=evaluating, drawn=drawn, kind=device.type)

    def _rounded(self, group: Indices) -> float:
        """The loss with weights as coarse rounding would leave them."""
        self.put_back()
        seed_everything(int(group[0]), self._computer.device)
        with torch.no_grad():
            for each in self._weights:
                each.mul_(1 + EPSILON * torch.randn_like(each))
        return self._loss(group, 1, as_it_was=False)

    def _loss(self, group: Indices, seed: int, *, as_it_was: bool = True) -> float:
        if as_it_was:
            self.put_back()
        seed_everything(seed, self._computer.device)
        self._seeded = generators(self._computer.device)
        part = self._computer.probe(group, 0, 0)
        return mean_of([(float(part.value.detach()) * part.factor, part.weight)])
