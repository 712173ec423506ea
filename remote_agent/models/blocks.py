"""Finds the blocks of a model, which it calls one after the other and between which it can be cut.

They are, in this order: what the job's own ``layers(model)`` returns; the members of an ``nn.Sequential``, those of
nested ones too, but not of one with a ``forward`` of its own; the decoder layers of a Hugging Face causal language
model, which its configuration names in ``base_model_pp_plan`` (Llama, Mistral, Qwen2, Gemma 2, GPT-NeoX), and GPT-2's.
What a model does before the first block (embeddings) goes with that one, and what it does after the last one (the
output layer) with the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import nn

from remote_agent.errors import TrainingError

LAYERS_HINT = (
    "give the job a layers(model) that returns the modules that the model calls one after the other, each once, and"
    " each with the tensors that the one before gave"
)


class CannotCut(TrainingError):
    """The model can't be cut into parts for several devices."""

    def __init__(self, cause: str, *, hint: str = LAYERS_HINT) -> None:
        super().__init__(cause, hint=hint)


Layers = Callable[[nn.Module], Iterable[nn.Module] | None]
"""A job's ``layers(model)``; None: it does not know this model."""

_GPT2_BLOCKS = "h"


def blocks_of(model: nn.Module, layers: Layers | None = None) -> tuple[nn.Module, ...]:
    """The blocks of ``model``, in their order.

    Args:
        layers: the job's own; None: it has none.

    Raises:
        CannotCut: it has fewer than two that are known, or ``layers`` gave something else.
    """
    given = layers(model) if layers is not None else None
    found = _known(model) if given is None else _named_by_job(model, given)
    if len(found) < 2:
        raise CannotCut(f"a {type(model).__name__} can't be cut: it has {len(found)} block{'s' * (not found)}")
    first: dict[int, int] = {}
    for position, block in enumerate(found):
        before = first.setdefault(id(block), position)
        if before != position:
            cause = f"a {type(model).__name__} can't be cut: blocks {before} and {position} are one"
            cause += f" {type(block).__name__}"
            raise CannotCut(cause, hint="make a module of its own for each place; they may share weights")
    return found


def _named_by_job(model: nn.Module, layers: Iterable[nn.Module]) -> tuple[nn.Module, ...]:
    named = tuple(layers)
    inside = {id(module) for module in model.modules()}
    for position, block in enumerate(named):
        if not isinstance(block, nn.Module):
            raise CannotCut(f"layers gave a {type(block).__name__} at position {position}")
        if id(block) not in inside:
            raise CannotCut(f"layers gave a {type(block).__name__} at position {position} that is not in the model")
    return named


def _known(model: nn.Module) -> tuple[nn.Module, ...]:
    if isinstance(model, nn.Sequential):
        return tuple(_flat(model))
    base = getattr(model, getattr(model, "base_model_prefix", "") or "", model)
    config = getattr(model, "config", None)
    names = [*(getattr(config, "base_model_pp_plan", None) or {}), _GPT2_BLOCKS]
    lists = [blocks for name in names if isinstance(blocks := getattr(base, name, None), nn.ModuleList)]
    if lists:
        return tuple(lists[0])
    raise CannotCut(f"it is not known how to cut a {type(model).__name__}{_near(model)}")


def _flat(sequence: nn.Sequential) -> Iterator[nn.Module]:
    for member in sequence:
        if isinstance(member, nn.Sequential) and type(member).forward is nn.Sequential.forward:
            yield from _flat(member)
        else:
            yield member


def _near(model: nn.Module) -> str:
    """Where blocks seem to be, for the message."""
    lists = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1
    ]
    return f"; it has lists of modules in {', '.join(lists[:3])}" if lists else ""
