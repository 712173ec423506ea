"""Computes sketches of a job's loss on one device, for the audit (:mod:`remote_agent.training.shared.audit`)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from remote_agent.training.errors import TrainingError
from remote_agent.training.shared import flat
from remote_agent.training.shared.audit import (
    AGAIN,
    FROZEN_BYTES,
    HALVED,
    NO_NOISE,
    NUMBERS,
    PARTS,
    REPEATS,
    SAMPLES,
    SCALE,
    STIRRED,
    Array,
    Audit,
    Cause,
    Finding,
    Noise,
    Sketch,
    are_counts,
    differ,
    same_batch,
    state_differs,
)
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code.losses import PartLoss
from remote_agent.training.worker.device import backend
from remote_agent.training.worker.device.compute import SliceComputer, seed_everything
from remote_agent.training.worker.device.row_noise import RowNoise
from remote_agent.training.worker.device.trained import refuse_own_backward
from remote_agent.training.worker.device.untouched import untouched


class Auditor:
    """Computes sketches of one model; model and random numbers are as they were afterwards.

    Args:
        model: on the computer's device, in training mode.
        computer: fetches samples and says what the device computes in.
        gradients: compare gradients; False: the loss alone, where there is no room for another gradient.
    """

    def __init__(self, model: nn.Module, computer: SliceComputer, *, gradients: bool = True) -> None:
        self._model, self._computer, self._gradients = model, computer, gradients
        frozen = [name for name, each in model.named_parameters() if not each.requires_grad]
        room = sum(each.nbytes for each in model.parameters() if not each.requires_grad) <= FROZEN_BYTES
        self._restored = [*computer.changing, *(frozen if room else ())]
        self.coarse = backend.of(computer.device).tolerance / backend.CPU.tolerance
        if computer.dtype is not None or any(each.dtype in flat.HALVES for each in model.parameters()):
            self.coarse = max(self.coarse, HALVED)

    def alone(self, samples: Indices, *, stir: bool = True, noise: bool = True, place: str = "") -> Audit:
        """Compare some of the ``samples`` with parts of them, and with themselves.

        Args:
            samples: indices to take some of.
            stir: change the weights a little, since equal ones hide what the loss does.
            noise: tell what the last bits of the weights change, for comparisons with other machines.
            place: host of this process.

        Raises:
            JobError: the loss, the model or the data raised.
        """
        indices = spread(samples, min(SAMPLES, self._computer.most or SAMPLES))
        with stirred(self._model) if stir else contextlib.nullcontext():
            before, weights = self.state(), self._weights()
            mode = Mode(self, indices)
            moved = frozenset(name for name, now in mode.whole.state.items() if not _equal(now, before[name]))
            audit = Audit(
                indices,
                mode.whole,
                mode.noise if noise else NO_NOISE,
                moved=moved,
                place=place,
                comparable=not _is_by_host(self._computer.data),
            )
            again = mode.of(0, len(indices))
            if not same_batch(mode.whole, again):  # a generator of the data's own
                return dataclasses.replace(audit, unchecked=True, comparable=False)
            changed = next((name for name, now in self._weights().items() if not _equal(now, weights[name])), "")
            finding = Finding(Cause.WEIGHTS_CHANGE, name=changed) if changed else mode.repeats(again)
            if finding or len(indices) < 2:
                return dataclasses.replace(audit, finding=finding, unchecked=len(indices) < 2)
            finding, summed = (None, False) if self._computer.unit else mode.adds_up()
            unknown = finding is not None and not mode.exact
            if not mode.is_random:
                return dataclasses.replace(audit, finding=finding, summed=summed)
            try:
                mode = Mode(self, indices, evaluating=True)
                if unknown:
                    finding, summed = mode.adds_up()
            except Exception:  # noqa: BLE001 - many a model's output has another form there, and the loss raises
                finding = None if unknown else finding
                return dataclasses.replace(audit, finding=finding, unchecked=unknown, comparable=False, summed=summed)
            if unknown and finding and not mode.exact:
                return dataclasses.replace(audit, unchecked=True, comparable=False)
            return dataclasses.replace(
                audit,
                whole=mode.whole,
                noise=mode.noise if noise else NO_NOISE,
                finding=finding,
                summed=summed,
                evaluating=True,
                by_sample=not unknown,
                comparable=audit.comparable and not mode.is_random,
            )

    def whole(self, indices: Indices, *, evaluating: bool = False, stir: bool = True) -> Sketch:
        """Return the sketch of these samples as :meth:`alone` computes it, for comparison with another machine's."""
        with stirred(self._model) if stir else contextlib.nullcontext():
            return Mode(self, indices, evaluating=evaluating).whole

    def sketch(
        self, indices: Indices, begin: int, end: int, *, evaluating: bool = False, rows: RowNoise | None = None
    ) -> Sketch:
        """Return the sketch of samples ``begin`` to ``end`` of ``indices``.

        Args:
            evaluating: in evaluation mode.
            rows: gives each sample random numbers of its own.
        """
        computer, parameters = self._computer, list(flat.trained(self._model).values())
        had_gradients = any(each.grad is not None for each in parameters)
        device, dtype = computer.device, computer.dtype
        with untouched(self._model, device, self._restored), torch.enable_grad():
            if evaluating:
                self._model.eval()
            batch = computer.fetched(indices[begin:end], begin, 0)
            seed_everything(0, device)
            scale = SCALE if dtype is torch.float16 else 1.0
            with rows.of(begin, end) if rows is not None else contextlib.nullcontext():
                with torch.autocast(device.type, dtype, enabled=dtype is not None):
                    part = computer.part(batch, end - begin)
                if not had_gradients:
                    refuse_own_backward(self._model)
                sketches = [
                    self._sketch_of(each, end - begin, scale, parameters, again=each is not part)
                    for each in (*part.terms, part)
                ]
            state = self.state()
        return dataclasses.replace(
            sketches[-1],
            state=state,
            batch=_batch_numbers(batch),
            coarse=max(self.coarse, HALVED * part.halved),
            terms=tuple(sketches[:-1]),
        )

    def _sketch_of(
        self, part: PartLoss, samples: int, scale: float, parameters: Sequence[Tensor], *, again: bool
    ) -> Sketch:
        """Return a sketch without state; ``again``: another one of the same graph follows."""
        found: Sequence[Tensor | None] = [None] * len(parameters)
        if self._gradients and part.value.requires_grad:
            found = torch.autograd.grad(part.value * scale, parameters, allow_unused=True, retain_graph=again)
        return Sketch(
            samples=samples,
            value=float(part.value.detach()),
            factor=part.factor,
            weight=part.weight,
            gradient=project(parameters, found) / scale,
        )

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._computer.device

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Some numbers of each buffer and frozen parameter, by name."""
        return {name: _numbers(tensor) for name, tensor in flat.state(self._model).items() if _is_plain(tensor)}

    def _weights(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: _numbers(tensor) for name, tensor in flat.trained(self._model).items()}

    @contextlib.contextmanager
    def shifted(self, names: Iterable[str]) -> Iterator[None]:
        """Give this state far other values, which shows what depends on them."""
        state = flat.state(self._model)
        kept = {name: state[name].detach().clone() for name in names}
        try:
            for name, value in kept.items():
                state[name].data.copy_(~value if value.dtype is torch.bool else 1000 * (value + 1))
            yield
        finally:
            for name, value in kept.items():
                state[name].data.copy_(value)

    def flipped(self) -> contextlib.AbstractContextManager[None]:
        """Change the last bit of each weight, in the precision that the device computes in."""
        least = torch.finfo(self._computer.dtype or torch.float32).eps

        def flip(weight: Tensor) -> Tensor:
            signs = torch.arange(weight.numel(), device=weight.device).sin().sign().view_as(weight)
            return weight * (1 + max(least, torch.finfo(weight.dtype).eps) * signs).to(weight.dtype)

        return _replaced(self._model, flip)


class Mode:
    """Sketches of some samples in training or evaluation mode."""

    def __init__(self, auditor: Auditor, indices: Indices, *, evaluating: bool = False) -> None:
        self._auditor, self._indices, self._evaluating = auditor, indices, evaluating
        self._rows = RowNoise(len(indices), auditor.device)
        self._before = auditor.state()
        self.whole = self.of(0, len(indices))

    @cached_property
    def noise(self) -> Noise:
        """What flipping the last bits of the weights changes."""
        with self._auditor.flipped():
            return Noise.between(self.whole, self.of(0, len(self._indices)))

    @property
    def exact(self) -> bool:
        """Whether parts drew the random numbers of the whole."""
        return self._rows.exact

    @property
    def is_random(self) -> bool:
        """Whether the loss drew random numbers."""
        return self._rows.drew

    def of(self, begin: int, end: int) -> Sketch:
        return self._auditor.sketch(self._indices, begin, end, evaluating=self._evaluating, rows=self._rows)

    def repeats(self, again: Sketch) -> Finding | None:
        """Compare calls with the same samples and the same random numbers; ``again`` is the second one."""
        limits = REPEATS.times(self.whole.coarse)
        for _ in range(AGAIN):
            if not differ([self.whole], [again], NO_NOISE, limits):
                return None
            again = self.of(0, len(self._indices))
        return Finding(Cause.CALLS_DO_NOT_REPEAT, one=self.whole.value, other=again.value)

    def adds_up(self) -> tuple[Finding | None, bool]:
        """Compare the whole with its parts; returns what is wrong, and whether the loss adds its samples up."""
        count = len(self._indices)
        finding: Finding | None = None
        for end in (count // 2 - (count // 2 + 1) % 2, count // 3, 2 * count // 3)[:AGAIN]:
            end = max(1, end)
            try:
                parts = [self.of(0, end), self.of(end, count)]
            except (TrainingError, RuntimeError, ValueError, IndexError) as error:
                return Finding(Cause.PARTS_DO_NOT_ADD_UP, name=str(error), unit=self._unit()), False
            if not self._differs(parts):
                stray = self._stray(parts)
                return (Finding(Cause.STATE_DOES_NOT_ADD_UP, name=stray) if stray else None), False
            if all(each.is_mean for each in (self.whole, *parts)) and not self._differs(parts, summed=True):
                return None, True
            weight = sum(each.weight for each in parts)
            together = sum(each.value * each.factor for each in parts) / weight if weight else 0.0
            finding = finding or Finding(Cause.PARTS_DO_NOT_ADD_UP, one=self.whole.value, other=together)
        assert finding is not None, "parts were compared"
        return Finding(finding.cause, one=finding.one, other=finding.other, unit=self._unit()), False

    def _stray(self, parts: Sequence[Sketch]) -> str:
        """Return the name of state that parts leave wrong, or "".

        A metric's counts are left alone: they add up, and neither loss nor other state depends on them.
        """
        limits = REPEATS.times(self.whole.coarse)
        names = state_differs(self.whole, parts, PARTS.times(self.whole.coarse))
        if not names or not are_counts(names, self._before, self.whole, parts):
            return "".join(names[:1])
        others = {name: numbers for name, numbers in self.whole.state.items() if name not in names}
        try:
            with self._auditor.shifted(names):
                shifted = self.of(0, len(self._indices))
        except (TrainingError, RuntimeError, ValueError, IndexError):
            return names[0]
        whole = dataclasses.replace(self.whole, state=others)
        matters = differ([whole], [shifted], NO_NOISE, limits) or state_differs(whole, [shifted], limits)
        return names[0] if matters else ""

    def _differs(self, parts: Sequence[Sketch], *, summed: bool = False) -> bool:
        limits = PARTS.times(self.whole.coarse)
        return differ([self.whole], parts, NO_NOISE, limits, summed=summed) and differ(
            [self.whole], parts, self.noise, limits, summed=summed
        )

    def _unit(self) -> int:
        """Return the smallest unit with which the parts add up; 0: none that the samples show."""
        count = len(self._indices)
        for unit in (each for each in (2, 3, 4, 6) if each < count and count % each == 0):
            with contextlib.suppress(Exception):
                if not self._differs([self.of(begin, begin + unit) for begin in range(0, count, unit)]):
                    return unit
        return 0


def uses_batch_statistics(model: nn.Module) -> bool:
    """Return True if the model normalises by the statistics of the samples that are together."""
    batch_norm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - torch has no public name for their common base
    return any(
        isinstance(module, batch_norm) and (module.training or not module.track_running_stats)
        for module in model.modules()
    )


def spread(samples: Indices, count: int) -> Indices:
    """Return some of the samples, from all over: what is sorted by label or length looks more alike than it is."""
    return samples[np.unique(np.linspace(0, len(samples) - 1, min(count, len(samples))).astype(np.int64))]


def project(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Array:
    """Return a random projection of each gradient to :data:`NUMBERS` numbers, float64 of shape (parameters, NUMBERS).

    Signs are drawn by row, so that a projection keeps the norm on average and is linear in the gradient.
    """
    found = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        into = torch.zeros(NUMBERS, device=parameter.device)
        if gradient is not None:
            numbers = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
            numbers = (torch.view_as_real(numbers) if numbers.is_complex() else numbers).reshape(-1).float()
            rows = len(numbers) // NUMBERS
            signs = torch.randint(0, 2, (rows, 1), generator=torch.Generator().manual_seed(rows)) * 2 - 1
            into = (numbers[: rows * NUMBERS].view(rows, NUMBERS) * signs.to(numbers.device)).sum(0)
            into[: len(numbers) - rows * NUMBERS] += numbers[rows * NUMBERS :]
        found.append(into)
    return torch.stack(found).cpu().double().numpy() if found else np.zeros((0, NUMBERS))


def stirred(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Change each trained weight a little, in the same way on every machine; afterwards it is what it was."""
    block = torch.randn(1 << 12, generator=torch.Generator().manual_seed(0))

    def stir(weight: Tensor) -> Tensor:
        noise = block.repeat(-(-weight.numel() // len(block)))[: weight.numel()].view_as(weight).to(weight)
        return weight + noise * (STIRRED * weight.abs() + STIRRED / 10)

    return _replaced(model, stir)


@contextlib.contextmanager
def _replaced(model: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Put changed copies in the place of the trained weights, whose memory other workers may share."""
    weights = [(each, each.data) for each in flat.trained(model).values() if each.is_floating_point()]
    try:
        for parameter, data in weights:
            parameter.data = change(data)
        yield
    finally:
        for parameter, data in weights:
            parameter.data = data


def _is_by_host(data: Any) -> bool:
    """Whether a dataset, or the one in it, says that its samples are others on each host."""
    while data is not None and not hasattr(data, "by_host"):
        data = getattr(data, "dataset", None)
    return bool(getattr(data, "by_host", False))


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested and bool(tensor.numel())


def _numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    some = flat.some(tensor, NUMBERS)
    some = (torch.view_as_real(some) if some.is_complex() else some).cpu()
    numbers = some.double().numpy() if some.is_floating_point() else some.long().numpy()
    return numbers.copy()  # the tensor changes


def _equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _batch_numbers(batch: Any) -> Array:
    """Return the mean square of each tensor of a batch."""
    leaves = [each for each in _pytree.tree_leaves(batch) if isinstance(each, Tensor) and _is_plain(each)]
    return np.array([float(each.detach().float().abs().mean()) for each in leaves])
