"""Finds where a model can be cut by watching one forward pass: what each block uses, and what it passes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from remote_agent.models.errors import CannotCut

Key = int | str
"""Of one of a call's arguments: its position or its name."""


@dataclass(frozen=True, kw_only=True)
class Seams:
    """What was found.

    Attributes:
        uses: by the name of each parameter, the blocks (by number) that use it; what is used before the first block
            counts for that one, what is used after the last one for the last. One that nothing was seen to use counts
            for both.
        inputs: for each block, which of its arguments depend on what was computed before it: they travel.
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


class _Watching(TorchFunctionMode):
    """Notes for each parameter of ``names`` (by id) the block at which torch's functions got it."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.block = 0
        self.uses: dict[str, set[int]] = {}
        self._names = names

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for each in pytree.tree_leaves((args, kwargs)):
            name = self._names.get(id(each))
            if name is not None:
                self.uses.setdefault(name, set()).add(self.block)
        return function(*args, **(kwargs or {}))


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
        blocks: see :func:`~remote_agent.models.blocks.blocks_of`.
        loss: the job's, on a few samples.

    Raises:
        CannotCut: the blocks are not called one after the other, each once, or what they exchange can't travel.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    watching = _Watching(names)
    calls = _Calls([], {}, {}, {})

    def called(number: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        _refuse_recomputed(number)
        watching.block = number
        calls.order.append(number)
        keys = calls.inputs[number] = _travelling(number, args, kwargs)
        # Copies, since a block may change its input: autograd then forgets how a view was given.
        copies = {key: argument(key, args, kwargs).clone() for key in keys}
        calls.given[number] = _operations(copies)
        args, kwargs = changed(args, kwargs, copies)
        result = original(*args, **kwargs)
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
    """Refuse checkpointing around a block: it would call the block again after the pass, with what the model gave it.

    Raises:
        CannotCut: a block is called within it.
    """
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks  # noqa: SLF001 - there is no public name
    if hooks(False) is not None or not torch.is_grad_enabled():  # of both kinds of torch.utils.checkpoint
        raise CannotCut(
            f"the model calls block {number} within activation checkpointing of its own",
            hint="leave it out (gradient_checkpointing_disable()), and set activation_checkpointing=true",
        )


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
    frozen = [each for each in model.parameters() if not each.requires_grad and each.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _travelling(number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Key, ...]:
    """The arguments that depend on a parameter; of the first block, and where none does, the first tensor."""
    given: dict[Key, Any] = dict(enumerate(args))
    given.update(kwargs)
    found = [key for key, value in given.items() if isinstance(value, Tensor) and value.requires_grad]
    for value in given.values():
        inside = pytree.tree_leaves(value) if isinstance(value, tuple | list | dict) else []
        if any(isinstance(each, Tensor) and each.requires_grad for each in inside):
            raise CannotCut(f"block {number} gets a {type(value).__name__} of tensors from the one before it")
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
