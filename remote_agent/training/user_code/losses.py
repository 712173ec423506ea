"""Interprets the result of a job's ``loss`` for a part of a batch, and its weight in the mean of the batch.

A mean over samples is the usual case: a part of ``n`` samples weighs ``n``. Two kinds of losses are means over
something else, and say what a part weighs by themselves:

- ``loss`` returns ``(sum, weight)``: the mean over a batch is the sum of its parts' sums by the sum of their weights.
- ``loss`` returns what ``torch.nn.functional.cross_entropy`` or ``nll_loss`` gave with ``reduction="mean"``, as the
  default loss, ``torch.nn.CrossEntropyLoss`` and Hugging Face's models do. These divide by the number of labels that
  are not ``ignore_index``, or by the sum of the labels' class weights; :func:`install` notes it.

``loss`` may return a list of such terms, each with a weight of its own: ``[(sum, weight), cross_entropy(...)]``. The
loss of a batch is then the sum over the terms of each one's mean: their weights are added up over all parts before
the division.

A loss that adds its samples up (``reduction="sum"``) is marked by ``summed``, which the audit found out.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from remote_agent.training.errors import JobError
from remote_agent.training.shared.flat import HALVES

WATCHED = ("cross_entropy", "nll_loss")
"""Functions of ``torch.nn.functional`` whose mean is over labels that count, with the weights of their classes."""

IGNORED = -100
"""The target that torch's cross entropy leaves out."""

OWN_LOSS = (
    "give the job a loss of its own: loss = torch.nn.MSELoss() for numbers, torch.nn.BCEWithLogitsLoss() for yes or no,"
    " or loss(model, batch)"
)

ROUNDING = 0.02
"""The sum of a sample's probabilities, of which some may be rounded to bfloat16, is 1 within this."""

OTHER_CLASSES = (
    "number the classes from 0, as many as the model has outputs in dimension 1, with one target for each sample or"
    " position; or give the job a loss(model, batch) of its own"
)

WEIGHT_HINT = (
    "return (sum, weight) from loss: the sum over samples or labels, and what it is to be divided by, for example"
    " (cross_entropy(..., reduction='sum'), (labels != -100).sum())"
)

TERMS_HINT = (
    "return the terms as a list: [cross_entropy(...), other]; each is a mean over samples, what cross_entropy gave"
    " itself, or (sum, weight)"
)

_UNKNOWN = (
    "a cross entropy in the loss is a mean over some of the labels, or by class weights, and the loss is more than"
    " that: what a part of a batch weighs in its mean is not known"
)


@dataclass(frozen=True)
class PartLoss:
    """The loss of one part of a batch.

    Attributes:
        value: what ``loss`` gave, a scalar that requires a gradient.
        factor: ``value`` times this is the part's sum.
        weight: what the part weighs: the loss of a batch is the sum of its parts' sums by the sum of their weights.
        unknown: why that is not so, as far as can be seen; empty where it is.
        halved: the job's code rounds to half precision: by its own autocast, or the loss itself.
        terms: of a list; ``value`` is then the loss of this part alone, as a mean over its samples. Empty: one term.
    """

    value: Tensor
    factor: float
    weight: float
    unknown: str = ""
    halved: bool = False
    terms: tuple[PartLoss, ...] = ()

    def is_mean_over(self, samples: int) -> bool:
        """Whether it weighs as much as it has samples."""
        return self.factor == self.weight == samples


def mean_of(parts: Sequence[tuple[float, float]]) -> float:
    """The loss of a batch whose parts have these sums and weights; 0 where they weigh nothing."""
    weight = sum(each for _, each in parts)
    return sum(total for total, _ in parts) / weight if weight else 0.0


@dataclass(frozen=True)
class _Call:
    """A call of a watched function that gave a mean."""

    result: Tensor
    version: int
    function: Callable[..., Tensor]
    arguments: inspect.BoundArguments

    def gave(self, value: Tensor) -> bool:
        """Whether ``value`` is the result, and was not changed in place since (``loss += penalty``)."""
        return (value is self.result or value._base is self.result) and value._version == self.version  # noqa: SLF001

    def weight(self) -> float:
        """What the result was divided by."""
        target, input_ = self.arguments.arguments["target"], self.arguments.arguments["input"]
        if target.is_floating_point():  # probabilities of classes: the mean is over samples and positions
            return float(input_.numel() / input_.shape[min(1, input_.dim() - 1)])
        counts = target != self.arguments.arguments["ignore_index"]
        weight = self.arguments.arguments["weight"]
        if weight is None:
            return float(counts.sum())
        return float(weight[target[counts]].cpu().double().sum())

    def is_plain(self) -> bool:
        """Whether the mean is over all labels alike."""
        arguments = self.arguments.arguments
        if arguments["weight"] is not None:
            return False
        target = arguments["target"]
        return target.is_floating_point() or not bool((target == arguments["ignore_index"]).any())

    def sum(self) -> Tensor:
        """The same, added up: 0, with gradients of 0, where no label counts."""
        arguments = dict(self.arguments.arguments) | {"reduction": "sum", "size_average": None, "reduce": None}
        return self.function(**arguments)


class _Noted(threading.local):
    """What is known of this thread's loss: its calls of watched functions, whether it used autocast, and the step."""

    def __init__(self) -> None:
        self.calls: list[_Call] | None = None
        self.halved = False
        self.step = 0


_thread = _Noted()
CONSTANT = "the loss does not depend on a trained parameter"
CONSTANT_HINT = "look for detach(), item(), no_grad() or argmax() on the way from the model's output to the loss"

SCALED = "loss scales itself by a GradScaler, and nothing divides the gradient by the scale again"
SCALED_HINT = "leave the GradScaler out, and set precision=fp16, which scales and unscales"

_noted: dict[str, Callable[..., Any]] = {}
AUTOCAST, SCALE = "autocast", "scale"


def install() -> None:
    """Note what the watched functions divide by, in this process from now on; before the job's code is loaded.

    The same for autocast to half precision.
    """
    for name in WATCHED:
        if name not in _noted:
            original = getattr(functional, name)
            _noted[name] = original
            setattr(functional, name, _noting(original))
    if AUTOCAST not in _noted:
        _noted[AUTOCAST] = torch.autocast.__enter__
        enter = _noted[AUTOCAST]

        @functools.wraps(enter)
        def entering(self: Any) -> Any:
            _thread.halved |= bool(self._enabled) and self.fast_dtype in HALVES
            return enter(self)

        torch.autocast.__enter__ = entering  # type: ignore[method-assign]
    if SCALE not in _noted:
        _noted[SCALE] = torch.amp.GradScaler.scale

        @functools.wraps(_noted[SCALE])
        def scaling(self: torch.amp.GradScaler, outputs: Any) -> Any:
            if self.is_enabled():
                raise JobError(SCALED, hint=SCALED_HINT)
            return outputs

        torch.amp.GradScaler.scale = scaling  # type: ignore[method-assign]


def _noting(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def noting(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _thread.calls is not None and not torch.compiler.is_compiling() and not _is_transformed():
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = bound.arguments
            old_style = arguments["size_average"] is not None or arguments["reduce"] is not None
            if arguments["reduction"] == "mean" and not old_style:
                _thread.calls.append(_Call(result, result._version, original, bound))  # noqa: SLF001
        return result

    return noting


def at_step(step: int) -> None:
    """Name the step that ``loss(model, batch, step)`` gets in this thread from now on."""
    _thread.step = step


def _is_transformed() -> bool:
    """Whether this is within ``torch.func.vmap`` or its like: tensors there can't be looked at afterwards."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001 - it is said nowhere else


def of_part(
    loss: Callable[[nn.Module, Any], Any],
    model: nn.Module,
    batch: Any,
    samples: int,
    summed_over: int = 0,
    *,
    constant: bool = False,
) -> PartLoss:
    """The loss of a part of ``samples`` samples.

    Args:
        model: what it is called with.
        batch: the part, on the model's device.
        samples: in the part.
        summed_over: samples of the whole batch, for a loss that adds its samples up; 0: a mean.
        constant: it may have no gradient, as that of an image without any object.

    Raises:
        JobError: it is not a scalar with a gradient, nor one with its weight.
    """
    calls: list[_Call] = []
    _thread.calls, _thread.halved = calls, False
    try:
        given = loss(model, batch)
    finally:
        _thread.calls = None
    halved, form = _thread.halved, _of_terms if isinstance(given, list) and given else _part_of
    part = form(given, calls, samples, summed_over)
    if torch.is_grad_enabled() and not part.value.requires_grad:
        if part.weight and not constant:
            raise JobError(CONSTANT, hint=CONSTANT_HINT)
        value = part.value if part.value.is_floating_point() else part.value.float()
        part = dataclasses.replace(part, value=value.detach().requires_grad_().reshape(()))
    return dataclasses.replace(part, halved=True) if halved or part.value.dtype in HALVES else part


def _part_of(given: object, calls: Sequence[_Call], samples: int, summed_over: int) -> PartLoss:
    """What ``loss`` gave, and the ``calls`` that it made."""
    if isinstance(given, tuple) and len(given) == 2:
        weight, total = _weight(given[1]), given[0]
        if not weight and isinstance(total, Tensor | Real) and not getattr(total, "requires_grad", False):
            total = torch.as_tensor(total, dtype=torch.float32).sum()  # a constant, as nothing counts
        return PartLoss(_scalar(total), 1.0, weight)
    value = _scalar(given)
    if summed_over:
        return PartLoss(value, float(summed_over), float(samples))
    for call in calls:
        if call.gave(value):
            weight = call.weight()
            return PartLoss(value, weight, weight) if weight else PartLoss(call.sum(), 1.0, 0.0)
    unknown = "" if all(call.is_plain() for call in calls) else _UNKNOWN
    return PartLoss(value, float(samples), float(samples), unknown)


def _of_terms(given: Any, calls: Sequence[_Call], samples: int, summed_over: int) -> PartLoss:
    """The loss of a list; a call whose result is a term says nothing of the other terms."""
    terms = []
    for each in given:
        others = [call for call in calls if not any(_gave(call, other) for other in given if other is not each)]
        terms.append(_part_of(each, others, samples, summed_over))
    if len(terms) == 1:
        return terms[0]
    means = [each.value * (each.factor / each.weight) for each in terms if each.weight]
    value = sum(means, start=0.0 * terms[0].value.detach())
    unknown = next((each.unknown for each in terms if each.unknown), "")
    return PartLoss(value, float(samples), float(samples), unknown, terms=tuple(terms))


def _gave(call: _Call, value: object) -> bool:
    return isinstance(value, Tensor) and call.gave(value)


def _scalar(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        hint = "return a scalar tensor: the mean over the batch"
        hint += ", as sum(losses.values())" if isinstance(value, Mapping) else ""
        hint += '; figures beside it as return loss, {"name": value}'
        raise JobError(f"loss gave a {type(value).__name__}", hint=hint)
    if value.numel() != 1:
        raise JobError(
            f"loss gave a tensor of shape {tuple(value.shape)}", hint="return a scalar: for example loss.mean()"
        )
    return value.reshape(())


def _weight(value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
        raise JobError(
            "loss gave (sum, weight) with a weight that has a gradient, and this gradient would be lost: the sums of"
            " all parts are divided by a number",
            hint="return (sum, weight.detach()) if the weight is to be a constant; or a mean over samples; or"
            " sum / weight with unit = batch size",
        )
    if isinstance(value, Tensor) and value.numel() != 1:
        cause = f"loss gave a tensor of shape {tuple(value.shape)} beside the loss, where two values are (sum, weight)"
        raise JobError(cause, hint='return the loss alone, or with figures: return loss, {"name": value}')
    if isinstance(value, Tensor):
        value = value.item()
    number = -1.0 if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0 <= number < float("inf"):
        raise JobError(
            f"loss gave the weight {value!r}", hint="return (sum, weight) with a weight that is a number, 0 or more"
        )
    return number


def function_of(own: Any) -> Callable[[nn.Module, Any], Any]:
    """``loss(model, batch)`` of what a job calls its loss.

    Args:
        own: such a function, or ``loss(model, batch, step)``; a criterion of ``(outputs, targets)`` such as
            ``torch.nn.CrossEntropyLoss(weight=...)``;
            or None, which is cross entropy.
    """
    if own is None:
        return functools.partial(_of_criterion, functional_cross_entropy)
    if isinstance(own, nn.Module):
        return functools.partial(_of_criterion, own)
    return _WithStep(own) if _takes_step(own) else own


@dataclass(frozen=True)
class _WithStep:
    """A loss that gets the number of the step, from 1, as its third argument."""

    function: Callable[[nn.Module, Any, int], Any]

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        return self.function(model, batch, _thread.step)


def _takes_step(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    return len(parameters) == 3 and parameters[2].name == "step"


def functional_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The default criterion, see :func:`install`; raises JobError as :func:`check_classes`."""
    check_classes(outputs, targets)
    return functional.cross_entropy(outputs, targets)


def check_classes(outputs: object, targets: object) -> None:
    """Refuse what is no classification for the default criterion: torch computes some of it without a word.

    Raises:
        JobError: the outputs have no classes, or the targets are neither classes nor probabilities of them.
    """
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        what = "targets are" if isinstance(outputs, Tensor) else "model's outputs are"
        kind = type(targets if isinstance(outputs, Tensor) else outputs).__name__
        cause = f"without a loss of the job's own the loss is cross entropy, and the {what} a {kind}, not a tensor"
        raise JobError(cause, hint=OWN_LOSS)
    wrong = _no_classes(outputs, targets)
    if wrong:
        raise JobError(
            f"without a loss of the job's own the loss is cross entropy, and {wrong}; the outputs have the shape"
            f" {tuple(outputs.shape)}, the targets {tuple(targets.shape)}, {str(targets.dtype).removeprefix('torch.')}",
            hint=OTHER_CLASSES
            if outputs.dim() > 1 < outputs.shape[1] and not targets.is_floating_point()
            else OWN_LOSS,
        )


def _no_classes(outputs: Tensor, targets: Tensor) -> str:
    """Why cross entropy of these means nothing; empty where it does."""
    if outputs.dim() < 2 or outputs.shape[1] < 2:
        return "the outputs have no two classes (in dimension 1), so that nothing would be trained"
    classes, of_each = outputs.shape[1], (outputs.shape[0], *outputs.shape[2:])
    if targets.is_floating_point():
        if targets.shape != outputs.shape:
            return "the targets are no whole numbers"
        is_off = ((targets.float().sum(1) - 1).abs() > ROUNDING).any() or (targets < 0).any()
        return "the targets are no probabilities, which add up to 1" if is_off else ""
    if targets.shape != of_each:
        return f"there is not one target for each output: the shape would be {of_each}, the classes in dimension 1"
    if ((targets >= classes) | ((targets < 0) & (targets != IGNORED))).any():
        return f"a target is none of the classes 0 to {classes - 1}"
    return ""


def _of_criterion(criterion: Callable[[Any, Any], Any], model: nn.Module, batch: Any) -> Any:
    """The criterion of ``(inputs, targets)``; of a batch with ``labels``, the loss that the model itself gives.

    Raises:
        JobError: the batch is something else.
    """
    hint = "give the job a loss(model, batch) of its own"
    if isinstance(batch, Mapping) and "labels" in batch:
        output = model(**batch)
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, Tensor):
            return loss
        raise JobError("the model gave no loss for a batch with labels", hint=hint)
    parts = tuple(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(parts, tuple | list) or len(parts) != 2:
        kind = f"{len(parts)} parts" if isinstance(parts, tuple | list) else f"a {type(parts).__name__}"
        cause = f"without a loss of the job's own a batch is (inputs, targets); this one has {kind}"
        raise JobError(cause, hint=hint)
    inputs, targets = parts
    return criterion(model(inputs), targets)
