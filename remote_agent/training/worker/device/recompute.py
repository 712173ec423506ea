"""Activation checkpointing: a block keeps no activations for backward, which computes them again from its input.

Chen et al., "Training deep nets with sublinear memory cost", 2016 (arXiv:1604.06174).

What is computed again starts from the state and the random numbers that forward started from, and leaves both as they
are: a counter counts once.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint, noop_context_fn


def apply(model: nn.Module, cut: Collection[nn.Module] = (), changing: Collection[str] = frozenset()) -> int:
    """Checkpoint the repeated :func:`blocks` of ``model`` in place; names, weights and gradients stay as they are.

    Args:
        cut: the blocks that a pipeline cuts it between. What holds several of them is left as it is: computed again, it
            would call those of other parts.
        changing: names of the buffers and frozen parameters that the job's code changes, looked up at each forward.

    Returns:
        How many blocks there are.
    """
    parts = {id(each) for each in cut}
    found = [block for block in blocks(model) if not any(id(part) in parts for part in _within(block))]
    paths = {id(module): path for path, module in model.named_modules()}
    for block in found:
        start = functools.partial(_contexts, block, paths[id(block)] + ".", changing)
        # On the instance: a wrapping module would change the names in the state dict.
        block.forward = functools.partial(_checkpointed, start, block.forward)
    return len(found)


def _checkpointed(start: Callable[[], Any], forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # A compiler keeps a block's state by itself, and can't trace other contexts.
    is_plain = torch.compiler.is_compiling() or not torch.is_grad_enabled()
    contexts = noop_context_fn if is_plain else start
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(block: nn.Module, prefix: str, changing: Collection[str]) -> tuple[Any, Any]:
    """Those of a forward that begins now, and of each time that it is computed again."""
    names = [name.removeprefix(prefix) for name in changing if name.startswith(prefix)]
    return contextlib.nullcontext(), _Again(block, names)


class _Again:
    """While it is entered, this state of ``block`` and the random generators are as they were when it was made.

    torch's own generators are not: torch keeps them. Copies take the tensors' places, since autograd forbids writing
    into what it has kept.
    """

    def __init__(self, block: nn.Module, names: Collection[str]) -> None:
        self._places = [_place(block, name) for name in names]
        self._first = [table[name].detach().clone() for table, name in self._places]
        self._generators = _generators()

    def __enter__(self) -> None:
        self._after, self._generators_after = [table[name] for table, name in self._places], _generators()
        self._put([tensor.clone() for tensor in self._first], self._generators)

    def __exit__(self, *unused: object) -> None:
        self._put(self._after, self._generators_after)
        self._after = []

    def _put(self, tensors: Collection[Tensor], generators: tuple[Any, Any]) -> None:
        for (table, name), tensor in zip(self._places, tensors, strict=True):
            table[name] = tensor
        random.setstate(generators[0])
        np.random.set_state(generators[1])


def _place(block: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The table that has a buffer or parameter of ``block``, and its name there."""
    path, _, last = name.rpartition(".")
    module = block.get_submodule(path)
    return module._buffers if last in module._buffers else module._parameters, last  # noqa: SLF001 - not a copy


def _generators() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _within(module: nn.Module) -> Iterator[nn.Module]:
    return (part for part in module.modules() if part is not module)


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Members of ``nn.ModuleList`` and ``nn.Sequential`` that have parameters and parts of their own.

    A container within a container is looked into: all layers in one block would spare nothing. Left out are single
    layers, which keep little but their input, and blocks with running statistics (batch normalisation), which a second
    forward would change a second time.
    """
    for child in model.children():
        inner = list(blocks(child))
        if not inner and isinstance(model, nn.ModuleList | nn.Sequential) and _is_block(child):
            yield child
        yield from inner


def _is_block(module: nn.Module) -> bool:
    """Whether it has parameters to train, parts, and no running statistics."""
    return (
        any(parameter.requires_grad for parameter in module.parameters())
        and any(True for _ in module.children())
        and not any(isinstance(part, _NormBase) and part.track_running_stats for part in module.modules())
    )
