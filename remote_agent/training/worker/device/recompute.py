"""Activation checkpointing: a block keeps no activations for backward, which computes them again from its input.

Chen et al., "Training deep nets with sublinear memory cost", 2016 (arXiv:1604.06174).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint


def apply(model: nn.Module, cut: Collection[nn.Module] = ()) -> int:
    """Checkpoint the repeated :func:`blocks` of ``model`` in place; names, weights and gradients stay as they are.

    Args:
        model: the whole model.
        cut: the blocks that a pipeline cuts it between. What holds several of them is left as it is: computed again, it
            would call those of other parts.

    Returns:
        How many blocks there are.
    """
    parts = {id(each) for each in cut}
    found = [block for block in blocks(model) if not any(id(part) in parts for part in _within(block))]
    for block in found:
        # On the instance: a wrapping module would change the names in the state dict.
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return len(found)


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
