"""A device computes slices: the samples fetched, forward, backward; the gradient SUM stays with the parameters.

The sum is in the scale of the whole batch's mean: a sample's gradient is what plain torch has for it, so that hooks on
activations see what they expect. The sums of a step's slices divided by the sum of their weights are the mean gradient,
whatever the loss is a mean over (:mod:`~remote_agent.training.user_code.losses`).

A slice's randomness (dropout) is seeded by (run, step, slice): the same on each worker, and however often. With
units it is seeded by (run, step, unit): the same however the batch is cut.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from remote_agent.current_call import HERE
from remote_agent.planning import units
from remote_agent.training.data import datasets
from remote_agent.training.data.reading import Reader
from remote_agent.training.errors import JobError, LossNotFinite, TooLarge, TrainingError
from remote_agent.training.shared import flat
from remote_agent.training.shared.messages import Slice
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code import losses, seeding
from remote_agent.training.user_code.losses import PartLoss
from remote_agent.training.user_code.user_errors import LOSS, as_job_error, is_out_of_memory
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device.scalars import Scalars
from remote_agent.training.worker.device.simulation import SimulatedDevice
from remote_agent.training.worker.device.trained import Still

BLAME_S = 10.0
"""The search takes no longer: the run has failed, and its user waits."""

OTHERS = 4
"""Other samples of the part that are tried: where all of them fail too, it is no sample's fault."""

SHOWN = 60
"""Characters of a value that are shown."""


def blamed_position(error: BaseException, count: int, compute: Callable[[int, int], object]) -> int | None:
    """The position of a sample that fails by itself as the part did, while others do not; None: none is to blame.

    Args:
        error: what the part raised.
        count: of the part's samples.
        compute: the loss of the part's samples from one position to before another.
    """
    until = time.monotonic() + BLAME_S

    def fails(begin: int, end: int) -> bool:
        try:
            compute(begin, end)
        except Exception as again:  # noqa: BLE001 - whatever the job's code raises
            return type(again) is type(error)
        return False

    begin, end = 0, count
    while end - begin > 1:
        middle = (begin + end) // 2
        if time.monotonic() > until:
            return None
        if fails(begin, middle):
            end = middle
        elif fails(middle, end):
            begin = middle
        else:
            return None  # only together
    others = [each for each in range(0, count, max(1, count // OTHERS)) if each != begin]
    return begin if any(not fails(each, each + 1) for each in others) else None


def words_of_sample(index: int, sample: Any) -> str:
    """``sample 17 of the data is to blame, with the target 12``; ``sample`` is a batch of it alone."""
    parts: Any = sample
    if isinstance(sample, Mapping):
        parts = [sample[name] for name in ("labels", "label", "targets", "target") if name in sample]
    value = parts[-1] if isinstance(parts, list | tuple) and len(parts) in (1, 2) else None
    said = f"sample {index} of the data is to blame"
    if isinstance(value, Tensor) and value.numel() <= OTHERS:
        value = value.flatten().tolist()
        said += f", with the target {str(value[0] if len(value) == 1 else value)[:SHOWN]}"
    return said


FIRST, MIN, MAX = 2.0**16, 2.0**-16, 2.0**24
"""Scales: to begin with, and the limits."""

GROWTH_INTERVAL = 2000
"""Good slices in a row after which the scale is doubled."""


class LossScale:
    """The scale, and what it is applied to.

    Args:
        parameters: whose gradients leave backward divided by the scale. They get a hook that runs before any other use
            of the gradient. What a loss itself differentiates by them (``torch.autograd.grad``) is not scaled and
            stays as it is.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.value = FIRST
        self._good = 0
        self._factor: float | None = None  # None: backward is not under way
        self._overflow: Tensor | None = None
        for parameter in parameters:
            parameter.register_hook(self._unscale)  # type: ignore[no-untyped-call]

    def backward(self, loss: Tensor, factor: float, *, again: bool = False) -> None:
        """Backward of ``factor`` times the ``loss``. The factor stays out of float16, where it could overflow."""
        self._factor = factor / self.value
        try:
            (loss * self.value).backward(retain_graph=again)  # type: ignore[no-untyped-call]
        finally:
            self._factor = None

    def settle(self) -> bool:
        """Whether a slice's gradients are good; else it is computed again. Raises JobError if no scale is left."""
        overflow, self._overflow = self._overflow is not None and bool(self._overflow), None
        if not overflow:
            self._good += 1
            if self._good >= GROWTH_INTERVAL:
                self._good, self.value = 0, min(2 * self.value, MAX)
            return True
        self._good, self.value = 0, self.value / 2
        if self.value < MIN:
            self.value = MIN
            raise JobError(
                "the gradients are not finite in float16, however small the loss is scaled",
                hint="train with precision=bf16 or precision=fp32, or look for a division by zero in the loss",
            )
        return False

    def _unscale(self, gradient: Tensor) -> Tensor:
        if self._factor is None:
            return gradient
        bad = ~torch.isfinite(gradient).all()
        self._overflow = bad if self._overflow is None else self._overflow | bad
        return gradient * self._factor


@dataclass(frozen=True)
class SliceLoss:
    """What a slice came to.

    Attributes:
        loss: mean over its samples, as the loss weighs them; 0 where they weigh nothing.
        weight: what they weigh in the step's mean; the gradient is to be divided by the sum of all slices' weights.
        terms: the same of each term, where these are kept apart.
    """

    loss: float
    weight: float
    terms: tuple[SliceLoss, ...] = ()


@dataclass(frozen=True)
class _Part:
    """Samples that are computed at a time, the first at position ``begin`` of the run's order.

    ``seed`` is set before them, where they are a unit.
    """

    indices: Indices
    begin: int
    seed: int | None = None


class SliceComputer:
    """Computes slices of one model on one device, in parts that fit into its memory.

    A slice may have to be computed again from its beginning: in smaller parts where the memory was full, with a smaller
    scale of the loss where float16 overflowed. Its random numbers are the same again, and buffers that training changes
    are set back.

    Args:
        model: on ``device``, in training mode.
        data: what :func:`~remote_agent.training.data.datasets.fetch` takes batches from.
        most: see the attribute.
        dtype: what forward and backward are autocast to; None: nothing.

    Attributes:
        most: samples that are computed at a time; a larger slice is accumulated. None: any.
        data: what :func:`~remote_agent.training.data.datasets.fetch` takes batches from.
        has_rows: batches have a row for each sample; None: not known yet.
        scalars: the figures that the loss gives beside the loss.
        simulated: whose pace is kept; None: as fast as it goes.
        changing: names of the model's buffers and frozen parameters that training changes. Each part starts from what
            they were; afterwards they are the parts' mean by samples (of whole numbers the largest).
        summed: the loss adds its samples up.
        terms: of the loss, whose gradient sums are kept apart in ``gradients``; 1: there is one, with the parameters.
        gradients: of the terms, for each parameter; None: it had no gradient.
        seen: terms that the loss gave.
        unit: samples that are always computed together, see :mod:`~remote_agent.planning.units`; 0: any.
        still: state of the model that training leaves alone; None: it is not checked.
        on_last: called with what the slice came to before the backward that makes its gradients final, where nothing
            but full memory can still have the slice computed again. Not with loss scaling.
        on_repeat: called before a slice is computed again: what was accumulated is void.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Any],
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
        self.summed = False
        self.terms = self.seen = 1
        self.gradients: list[list[Tensor | None]] = []
        self.unit = 0
        self.still: Still | None = None
        self.on_last: Callable[[SliceLoss], None] | None = None
        self.on_repeat: Callable[[], None] | None = None
        self.scalars = Scalars(loss)
        self._model, self._loss, self.data, self._device = model, self.scalars.loss, data, device
        self.has_rows: bool | None = None
        self.seed, self._dtype = seed, dtype
        self._reader = Reader(data, seed)
        self._parameters = list(flat.trained(model).values())
        self._anchored = flat.BoundBuffers(model)
        self._scale = LossScale(self._parameters) if dtype is torch.float16 else None
        self._computing: _Part | None = None  # the part whose loss is being computed

    def __call__(self, step: int, own: Slice, at: str = "") -> SliceLoss:
        """Compute a slice of ``step``, which is called ``at`` in messages, and leave its gradient sum.

        Raises:
            LossNotFinite: the loss is NaN or infinite.
            JobError: the job's loss, model or data raised, or a single sample (or unit) does not fit into memory.
        """
        HERE.slice(step, own.index)
        started = time.perf_counter()
        result, at = self.compute(step, own), at or f"step {step:,}"
        if not math.isfinite(result.loss):
            weights = all(bool(parameter.isfinite().all()) for parameter in self._parameters)
            raise LossNotFinite.of(result.loss, at, own.indices.tolist(), weights=weights)
        if self.simulated is not None:
            self.simulated.sleep_until_target(len(own.indices), started)
        return result

    def compute(self, step: int, own: Slice) -> SliceLoss:
        """As a call, as fast as it goes; when it returns the device is done."""
        if not len(own.indices):
            raise JobError("a slice without samples can't be computed")
        devices.select(self._device)
        losses.at_step(step)
        if own.ahead:
            coming = (part for each in (own, *own.ahead) for part in self._parts(step, each))
            self._reader.plan([(part.indices, part.begin) for part in coming])
        state = flat.buffers(self._model, self.changing) if self.changing else {}
        untouched = self.still.look() if self.still is not None else []
        before = {name: tensor.detach().clone() for name, tensor in state.items()}
        while True:
            seed_everything(slice_seed(self.seed, step, own.index), self._device)
            self.scalars.again()
            result = self._attempt(step, own, state, before)
            if result is None:
                self._compute_less_at_a_time(len(own.indices))
            elif self._scale is None or not math.isfinite(result.loss) or self._scale.settle():
                if self.still is not None:
                    self.still.check(untouched)
                self.scalars.settle()
                return result
            self._anchored.settle()
            with torch.no_grad():
                for name, tensor in state.items():
                    tensor.copy_(before[name])
            if self.on_repeat is not None:
                self.on_repeat()

    def _attempt(
        self, step: int, own: Slice, state: Mapping[str, Tensor], before: Mapping[str, Tensor]
    ) -> SliceLoss | None:
        """Forward and backward; None: the memory is full. What the failure held is free again after that."""
        try:
            result = self._forward_backward(step, own, state, before)
            devices.synchronize(self._device)  # what failed on the device is raised here
        except JobError as error:
            blamed = self._blamed(error, error)
            raise blamed from (error if blamed is not error else error.__cause__)
        except TrainingError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            together = self.unit or self._at_a_time(len(own.indices)) == 1
            if not is_out_of_memory(error):
                raise self._blamed(as_job_error(LOSS, error), error) from error
            if together:
                full = as_job_error(LOSS, error)
                raise TooLarge(full.cause, hint=full.hint, detail=full.detail) from error
            return None
        else:
            return result
        finally:
            HERE.leave()

    def _blamed(self, found: JobError, error: BaseException) -> JobError:
        """``found``, with the sample that is to blame where ``error`` is that of one sample's loss."""
        part, self._computing = self._computing, None
        if part is None or type(found) is not JobError or not isinstance(error, Exception):
            return found
        of, first = part.indices, part.begin
        at = blamed_position(error, len(of), lambda begin, end: self.probe(of[begin:end], self.seed, first + begin))
        if at is None:
            return found
        said = words_of_sample(int(of[at]), datasets.fetch(self.data, of[at : at + 1], self.seed, first + at))
        return JobError(f"{found.cause}; {said}", hint=found.hint, detail=found.detail)

    def _forward_backward(
        self, step: int, own: Slice, state: Mapping[str, Tensor], before: Mapping[str, Tensor]
    ) -> SliceLoss:
        for parameter in self._parameters:
            parameter.grad = None
        parts = self._parts(step, own)
        batch = own.total
        mean = _Mean(state, before) if state and len(parts) > 1 else None
        self.gradients = [[None] * len(self._parameters) for _ in range(self.terms)]
        apart: list[list[PartLoss]] = []
        total: Tensor | None = None
        weight, scale = 0.0, 1.0
        for part in parts:
            if part.seed is not None:
                seed_everything(part.seed, self._device)
            if mean is not None:
                mean.restart()
            samples = self.fetched(part.indices, part.begin)
            with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
                HERE.enter(LOSS, int(part.indices[0]), len(part.indices))  # to the end of backward
                self.scalars.samples = len(part.indices)
                self._computing = part
                over = batch if self.summed else 0
                loss = losses.of_part(self._loss, self._model, samples, len(part.indices), over, constant=True)
            self._computing = None
            self.refuse_lost(loss, samples, len(part.indices), batch)
            whole = len(part.indices) == batch
            scale = 1 / loss.weight if whole and loss.weight else 1 / batch
            summed = loss.value.detach() * loss.factor
            total = summed if total is None else total + summed
            weight += loss.weight
            self.seen = max(self.seen, len(loss.terms))
            if self.terms > 1:
                apart.append(self._backward_apart(loss, 1 / batch))
            else:
                if part is parts[-1] and self.on_last is not None and self._scale is None:
                    self.on_last(_slice_loss(total, weight, scale))
                self._backward(loss.value, loss.factor * scale)
            self._anchored.settle()
            if mean is not None:
                mean.add(len(part.indices))
        if mean is not None:
            mean.put()
        assert total is not None, "a slice has samples"
        terms = [
            _slice_loss(sum(each.value * each.factor for each in of), sum(each.weight for each in of), 1 / batch)
            for of in zip(*apart, strict=True)
        ]
        return dataclasses.replace(_slice_loss(total, weight, scale), terms=tuple(terms))

    def _backward(self, value: Tensor, factor: float, *, again: bool = False) -> None:
        if self._scale is not None:
            self._scale.backward(value, factor, again=again)
        else:
            (value * factor).backward(retain_graph=again)  # type: ignore[no-untyped-call]

    def _backward_apart(self, loss: PartLoss, scale: float) -> list[PartLoss]:
        """Compute the gradient of each term, and add it to those of the same term; returns the terms' values."""
        if len(loss.terms) != self.terms:
            raise JobError(
                f"loss gave {max(1, len(loss.terms))} terms, and {self.terms} before",
                hint="return as many each time: (0.0, 0) for one that does not occur",
            )
        for number, term in enumerate(loss.terms):
            if not term.value.requires_grad:
                continue
            for parameter, gradient in zip(self._parameters, self.gradients[number], strict=True):
                parameter.grad = gradient
            again = any(each.value.requires_grad for each in loss.terms[number + 1 :])
            self._backward(term.value, term.factor * scale, again=again)
            self.gradients[number] = [parameter.grad for parameter in self._parameters]
            for parameter in self._parameters:
                parameter.grad = None
        return [dataclasses.replace(each, value=each.value.detach()) for each in loss.terms]

    def _parts(self, step: int, own: Slice) -> list[_Part]:
        """What is computed at a time.

        Whole units where there are some; else as few parts as possible, of sizes as equal as possible: batch
        normalisation can't use a single sample.
        """
        samples = len(own.indices)
        if not self.unit:
            ends = units.bounds(samples, self._at_a_time(samples))
            return [_Part(own.indices[begin:end], own.begin + begin) for begin, end in pairwise(ends)]
        offset = own.begin - own.first
        ends = units.bounds(own.total, self.unit)
        parts = []
        for number, (begin, end) in enumerate(pairwise(ends)):
            start = max(0, begin - offset)
            inside = own.indices[start : max(0, end - offset)]
            if len(inside) > self._at_a_time(len(inside)):
                raise JobError(
                    f"{len(inside)} samples have to be computed together, and this device has room for {self.most}",
                    hint=f"set unit={self.most} or less, or leave the device out of the run",
                )
            if len(inside):
                parts.append(_Part(inside, own.begin + start, slice_seed(self.seed, step, number)))
        return parts

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> torch.dtype | None:
        """What forward and backward are autocast to; None: nothing."""
        return self._dtype

    def on(self, device: torch.device) -> SliceComputer:
        """The same for a model that is on another device."""
        other = copy.copy(self)
        other._device, other._dtype, other.most = device, None, None  # noqa: SLF001 - it is one of this class
        return other

    def fetched(self, indices: Indices, begin: int, seed: int | None = None) -> Any:
        """These samples, on the device; the first is at position ``begin`` of the run's order."""
        if seed is None:
            return devices.move(self._reader.read((indices, begin)), self._device)
        return devices.move(datasets.fetch(self.data, indices, seed, begin), self._device)

    def probe(self, indices: Indices, seed: int, begin: int) -> PartLoss:
        """The loss of these samples together, without backward and in full precision.

        Args:
            indices: of the samples.
            seed: of the data's random numbers.
            begin: position of the first sample, for these.
        """
        devices.select(self._device)
        samples = self.fetched(indices, begin, seed)
        with torch.enable_grad():
            return losses.of_part(self._loss, self._model, samples, len(indices), constant=True)

    def part(self, samples: Any, count: int) -> PartLoss:
        """Return the loss of ``count`` samples that were fetched."""
        return losses.of_part(self._loss, self._model, samples, count, constant=True)

    def refuse_lost(self, loss: PartLoss, samples: Any, count: int, batch: int) -> None:
        """A part of a slice whose loss can't be weighed beside the others.

        Args:
            count: of the samples.
            batch: samples of the step.

        Raises:
            JobError: some samples were left out of the part, or what its mean is over is not known.
        """
        if count == batch:
            return
        if loss.is_mean_over(count) and not self.summed:
            rows = {len(each) for each in _pytree.tree_leaves(samples) if isinstance(each, Tensor) and each.dim()}
            if self.has_rows and count not in rows:
                lost = f"{count} samples became a batch of {max(rows, default=0)} rows: collate_fn leaves some out"
                raise JobError(lost, hint=losses.WEIGHT_HINT)
            self.has_rows = count in rows if self.has_rows is None and count > 1 else self.has_rows
        if loss.unknown and not self.unit:
            raise JobError(loss.unknown, hint=losses.TERMS_HINT)

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


class _Mean:
    """What the model's code makes of its own state, over the parts of a slice, each of which starts from the same."""

    def __init__(self, state: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
        self._state, self._before = state, before
        self._sums: dict[str, Tensor] = {}
        self._samples = 0

    @torch.no_grad()
    def restart(self) -> None:
        for name, tensor in self._state.items():
            tensor.copy_(self._before[name])

    @torch.no_grad()
    def add(self, samples: int) -> None:
        """A part of so many samples is done."""
        self._samples += samples
        for name, tensor in self._state.items():
            known = self._sums.get(name)
            if tensor.is_floating_point():
                part = tensor.detach().cpu().double() * samples  # MPS has no float64
                self._sums[name] = part if known is None else known.add_(part)
            else:
                self._sums[name] = tensor.clone() if known is None else torch.maximum(known, tensor)

    @torch.no_grad()
    def put(self) -> None:
        """Leave the mean in the model."""
        for name, tensor in self._state.items():
            mean = self._sums[name] / self._samples if tensor.is_floating_point() else self._sums[name]
            tensor.copy_(mean.to(tensor.dtype))


def _slice_loss(total: Tensor | float, weight: float, scale: float) -> SliceLoss:
    loss = float(total)
    return SliceLoss(loss=loss / weight if weight else loss, weight=weight * scale)


def seed_everything(seed: int, device: torch.device) -> None:
    """Seed the generators that a job's code draws from: torch's (on ``device`` too), numpy's and Python's."""
    seeding.seed_all(seed)
    devices.seed(device, seed)


def slice_seed(seed: int, step: int, index: int) -> int:
    """Seed of a slice's randomness: the same on each worker, and however often."""
    return int(np.random.SeedSequence((seed, step, index)).generate_state(1, np.uint64)[0] >> np.uint64(1))
