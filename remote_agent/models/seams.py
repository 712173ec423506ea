"""Finds where a model can be cut by watching one forward pass: what each block uses, and what it passes on.

What a block gets from the one before it travels. Whatever else depends on weights of another part is refused: that part
alone could compute it. Autograd knows most of it; masks, indices and detached values are watched (:class:`_Watching`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from remote_agent.models.blocks import CannotCut

Key = int | str
"""Of one of a call's arguments: its position or its name."""


@dataclass(frozen=True, kw_only=True)
class Seams:
    """What was found.

    Attributes:
        uses: by the name of each parameter, the blocks (by number) that use it; what is used before the first block
            counts for that one, what is used after the last one for the last. One that nothing was seen to use counts
            for both.
        inputs: for each block, which of its arguments depend on weights of what is before it: they travel.
        parts: for each block, how many parts its result has; 0: it is a tensor.
    """

    uses: Mapping[str, frozenset[int]]
    inputs: tuple[tuple[Key, ...], ...]
    parts: tuple[int, ...]

    def shared(self, bounds: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The parameters that more than one stage uses, by name, with these stages' numbers in rising order.

        Args:
            bounds: the first block of each stage, and the number of blocks.
        """
        found: dict[str, tuple[int, ...]] = {}
        for name, blocks in self.uses.items():
            holders = tuple(
                stage
                for stage, (first, last) in enumerate(pairwise(bounds))
                if any(first <= block < last for block in blocks)
            )
            if len(holders) > 1:
                found[name] = holders
        return found


_OF_SHAPE = re.compile(r"(zeros|ones|empty|full|rand|randn|randint)_like|new_(zeros|ones|empty|full|tensor)")
"""Functions of torch whose results do not depend on the tensor's numbers."""

_OF_FIRST = frozenset({"to", "type_as", "expand_as", "view_as", "reshape_as"})
"""Those whose results depend on the numbers of the first tensor alone."""

_READING = frozenset({"item", "tolist", "numpy", "equal", "allclose", "is_nonzero"}) | {
    f"__{name}__" for name in ("bool", "int", "float", "complex", "index", "array", "contains")
}
"""Those that give a tensor's numbers to Python."""


class _Watching(TorchFunctionMode):
    """Notes at which block torch's functions got each parameter, and what depends on weights without a gradient.

    Args:
        names: of the parameters, by id.

    Attributes:
        block: the last one that was called; before all of them, the first.
        inside: a block is under way.
        uses: the blocks at which each parameter was used, by its name.
    """

    def __init__(self, names: Mapping[int, str], last: int) -> None:
        super().__init__()
        self.block, self.inside = 0, False
        self.uses: dict[str, set[int]] = {}
        self._names, self._last = names, last
        self._made: Any = WeakTensorKeyDictionary()  # what depends on weights, and the block at which it was made

    def enter(self, block: int, given: Iterable[Tensor]) -> None:
        """A block is called with these tensors, which travel."""
        self.block, self.inside = block, True
        for each in given:
            if self.depends(each):
                self._made[each] = block

    def depends(self, value: Any) -> bool:
        """Whether it is a tensor that depends on weights."""
        return isinstance(value, Tensor) and (value.requires_grad or value in self._made)

    def refuse_older(self, values: Sequence[Any], *, all_: bool) -> None:
        """Raise CannotCut if a value of an earlier block is used: any with ``all_``, else one without gradient."""
        for value in values:
            looked_at = isinstance(value, Tensor) and (all_ or not value.requires_grad)
            made = self._made.get(value, self.block) if looked_at else self.block
            if made != self.block:
                before = f"at block {made}" if made else "before or at block 0"
                raise CannotCut(
                    f"block {self.block}, or what follows it, uses a mask or another value without gradient that was"
                    f" computed from weights {before}, and a part without these would not know it",
                    hint="compute it from the batch, or within the block that uses it, or train with strategy=sync",
                )

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = pytree.tree_leaves((args, kwargs))
        for each in given:
            name = self._names.get(id(each))
            if name is not None:
                self.uses.setdefault(name, set()).add(self.block)
        result = function(*args, **(kwargs or {}))
        called = getattr(function, "__name__", "")
        seen = given[:1] if called in _OF_FIRST else () if _OF_SHAPE.fullmatch(called) else given
        if any(map(self.depends, seen)):
            self._note(called, seen, args[:1] if called == "__setitem__" else pytree.tree_leaves(result))
        return result

    def _note(self, function: str, given: Sequence[Any], made: Sequence[Any]) -> None:
        """What a function of torch made of values of which one depends on weights."""
        tensors = [each for each in made if isinstance(each, Tensor)]
        if function in _READING and not self.inside and self.block < self._last:
            raise CannotCut(
                f"the model's code looks at a number that depends on weights ({function}) outside of its blocks, and"
                " other parts would not know it",
                hint="do it within a block, or train with strategy=sync",
            )
        if tensors or function in _READING:  # not its shape or its type
            self.refuse_older(given, all_=not any(each.requires_grad for each in tensors))
        for each in tensors:
            self._made[each] = self.block


@dataclass
class _Calls:
    """The blocks' calls so far."""

    order: list[int]
    inputs: dict[int, tuple[Key, ...]]
    parts: dict[int, int]
    given: dict[int, list[Node]]  # of which operations the inputs came


def trace(model: nn.Module, blocks: Sequence[nn.Module], loss: Callable[[], Any]) -> Seams:
    """Watch ``loss``, which calls the whole model once.

    Args:
        model: the whole model; it is as it was afterwards.
        loss: the job's, on a few samples.

    Raises:
        CannotCut: the blocks are not called one after the other, each once, or what they exchange can't travel.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    watching = _Watching(names, len(blocks) - 1)
    calls = _Calls([], {}, {}, {})

    def called(number: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        _refuse_recomputed(number)
        keys = calls.inputs[number] = _travelling(number, args, kwargs, watching)
        calls.order.append(number)
        # Copies, since a block may change its input: autograd then forgets how a view was given.
        copies = {key: argument(key, args, kwargs).clone() for key in keys}
        watching.enter(number, copies.values())
        calls.given[number] = _operations(copies)
        args, kwargs = changed(args, kwargs, copies)
        result = original(*args, **kwargs)
        watching.inside = False
        calls.parts[number] = _parts(number, result)
        return result

    with intercepted(blocks, called), _all_trained(model), torch.enable_grad(), watching:
        value = loss()
    if calls.order != list(range(len(blocks))):
        said = ", ".join(map(str, calls.order[:8])) or "none of them"
        raise CannotCut(f"the model's {len(blocks)} blocks are not called one after the other, each once, but {said}")
    for number, block in enumerate(blocks):
        for parameter in block.parameters():
            watching.uses.setdefault(names[id(parameter)], set()).add(number)
    _refuse_crossing(calls.given, _operations(value), names, watching.uses)
    ends = {0, len(blocks) - 1}
    return Seams(
        uses={name: frozenset(watching.uses.get(name, ends)) for name in names.values()},
        inputs=tuple(calls.inputs[number] for number in range(len(blocks))),
        parts=tuple(calls.parts[number] for number in range(len(blocks))),
    )


def has_gradients(tensor: Tensor) -> bool:
    """Whether its numbers can have gradients."""
    return tensor.is_floating_point() or tensor.is_complex()


def argument(key: Key, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An argument of a call."""
    return args[key] if isinstance(key, int) else kwargs[key]


def changed(
    args: Sequence[Any], kwargs: Mapping[str, Any], others: Mapping[Key, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments with ``others`` in the place of some."""
    given = tuple(others.get(position, value) for position, value in enumerate(args))
    return given, {name: others.get(name, value) for name, value in kwargs.items()}


def _operations(value: Any) -> list[Node]:
    """The operations of autograd that gave the tensors of ``value``."""
    tensors = [each for each in pytree.tree_leaves(value) if isinstance(each, Tensor)]
    return [each.grad_fn for each in tensors if each.grad_fn is not None]


def _refuse_crossing(
    given: Mapping[int, Sequence[Node]], ends: Sequence[Node], names: Mapping[int, str], uses: Mapping[str, set[int]]
) -> None:
    """Refuse a model whose result depends on a block by another way than the inputs of the next one.

    That may change a loss by little and its gradients by much, as a term of all routers of a mixture of experts does.

    Args:
        given: by the number of each block, the operations that gave its inputs.
        ends: those that gave the loss.
        names: of the parameters, by id.
        uses: the blocks that use each parameter, by its name.

    Raises:
        CannotCut: it is such a model.
    """
    for number in sorted(given, reverse=True)[:-1]:
        seen, waiting = set(given[number]), list(ends)
        while waiting:
            operation = waiting.pop()
            if operation in seen:
                continue
            seen.add(operation)
            waiting += [before for before, _ in operation.next_functions if before is not None]
            name = names.get(id(getattr(operation, "variable", None)))
            if name is not None and number not in uses.get(name, ()):
                cause = f"what follows block {number - 1} depends on {name} by another way"
                raise CannotCut(
                    f"{cause} than by what block {number} gets",
                    hint="leave it out of the model or the loss (of a mixture of experts: output_router_logits=False),"
                    " or train with strategy=sync",
                )
        ends = given[number]


def _refuse_recomputed(number: int) -> None:
    """Refuse checkpointing around a block: the block would be called again after the pass, with what the model gave."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks  # noqa: SLF001 - there is no public name
    if hooks(False) is None and torch.is_grad_enabled():
        return
    where, hint = "", "leave it out (gradient_checkpointing_disable()), and set activation_checkpointing=true"
    if not torch.is_grad_enabled():
        where, hint = ", or under torch.no_grad()", f"freeze weights by requires_grad_(False); of checkpointing: {hint}"
    raise CannotCut(f"the model calls block {number} within activation checkpointing of its own{where}", hint=hint)


@contextlib.contextmanager
def intercepted(blocks: Sequence[nn.Module], call: Callable[..., Any]) -> Iterator[None]:
    """Have ``call(number, original, *args, **kwargs)`` called in the place of each block's ``forward``."""
    before = [block.__dict__.get("forward") for block in blocks]
    for number, block in enumerate(blocks):
        block.forward = _bound(call, number, block.forward)
    try:
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            if own is None:
                del block.forward
            else:
                block.forward = own


def _bound(call: Callable[..., Any], number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return call(number, original, *args, **kwargs)

    return forward


@contextlib.contextmanager
def _all_trained(model: nn.Module) -> Iterator[None]:
    """Frozen parameters take part in autograd, too: what depends on them travels."""
    frozen = [each for each in model.parameters() if not each.requires_grad and has_gradients(each)]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _travelling(number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], watching: _Watching) -> tuple[Key, ...]:
    """The arguments that depend on a parameter; of the first block, and where none does, the first tensor."""
    given: dict[Key, Any] = dict(enumerate(args))
    given.update(kwargs)
    found = [key for key, value in given.items() if watching.depends(value)]
    for value in given.values():
        inside = pytree.tree_leaves(value) if isinstance(value, tuple | list | dict) else []
        if any(map(watching.depends, inside)):
            raise CannotCut(f"block {number} gets a {type(value).__name__} of tensors from the one before it")
    watching.refuse_older([given[key] for key in found], all_=False)
    found = found or [key for key, value in given.items() if isinstance(value, Tensor)][:1]
    if not found:
        raise CannotCut(f"block {number} gets no tensor")
    return tuple(found)


def _parts(number: int, result: Any) -> int:
    if isinstance(result, Tensor):
        return 0
    if isinstance(result, tuple) and result and isinstance(result[0], Tensor):
        return len(result)
    raise CannotCut(f"block {number} gives a {type(result).__name__} and no tensor")
