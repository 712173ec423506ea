"""What an object of the user's holds, in little memory: to see whether its code changes that beside the weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.training.shared import flat


def values(path: str, value: object, depth: int = 2) -> Iterator[tuple[str, object]]:
    """Numbers and tensors in ``value``, each with its ``path``; containers are entered ``depth`` deep."""
    if isinstance(value, bool | int | float):
        yield path, value
    elif isinstance(value, Tensor | np.ndarray):
        yield path, flat.digest(torch.as_tensor(value))
    elif isinstance(value, nn.Module):
        for name, tensor in value.state_dict().items():
            if isinstance(tensor, Tensor):
                yield f"{path}.{name}", flat.digest(tensor)
    elif isinstance(value, Mapping) and depth:
        for key, entry in list(value.items())[:100]:
            yield from values(f"{path}[{key!r}]", entry, depth - 1)


def named_by(function: Callable[..., object], seen: set[object] | None = None) -> Iterator[tuple[str, object]]:
    """Numbers and tensors that a function's code reaches by name outside of itself, by that name.

    They lie in its module or in a function around it, or in objects there of the same module's classes. What functions
    of the same module reach that it calls by name counts as well.
    """
    seen = set() if seen is None else seen
    code = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(code, FunctionType) or code in seen:
        return
    seen.add(code)
    outside = inspect.getclosurevars(code)
    for name, value in {**outside.globals, **outside.nonlocals}.items():
        if isinstance(value, FunctionType) and value.__module__ == code.__module__:
            yield from named_by(value, seen)
        elif type(value).__module__ == code.__module__ and not isinstance(value, nn.Module):
            for attribute, held in getattr(value, "__dict__", {}).items():
                yield from values(f"{name}.{attribute}", held)
        else:
            yield from values(name, value)


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """The path of a value that is not what it was; empty: all are."""
    return next((name for name, value in after.items() if name in before and before[name] != value), "")
