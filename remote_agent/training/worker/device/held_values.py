"""Remembers the values that a user's object holds, in little memory, to detect changes outside of the weights."""

from __future__ import annotations

import inspect
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import FunctionType

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.training.shared import flat
from remote_agent.training.user_code.user_errors import is_users_own

MOST_ENTRIES = 100
"""Of a container, that are looked at."""

LENGTH = "len({})"
"""The name of how long a list is: what is only added to it may be for the user's own log."""

_OF_TORCH = frozenset(vars(nn.Module()))
"""What each module has: parameters, buffers and submodules lie there."""


def values(path: str, value: object, depth: int = 2) -> Iterator[tuple[str, object]]:
    """Numbers, tensors and random generators in ``value``, each with its ``path``, and how long lists are.

    Containers and objects of the user's own classes are entered ``depth`` deep.
    """
    if isinstance(value, bool | int | float):
        yield path, value
    elif isinstance(value, Tensor | np.ndarray):
        yield path, flat.digest(torch.as_tensor(value))
    elif isinstance(value, nn.Module):
        for name, tensor in value.state_dict().items():
            if isinstance(tensor, Tensor):
                yield f"{path}.{name}", flat.digest(tensor)
    elif isinstance(value, torch.Generator):
        yield path, flat.fingerprint(value.get_state())
    elif isinstance(value, np.random.Generator | np.random.RandomState):
        yield path, repr(value.bit_generator.state if isinstance(value, np.random.Generator) else value.get_state())
    elif isinstance(value, random.Random):
        yield path, hash(value.getstate())
    elif isinstance(value, Mapping | list | tuple | deque) and depth:
        if isinstance(value, list | deque):
            yield LENGTH.format(path), len(value)
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, entry in list(islice(entries, MOST_ENTRIES)):
            yield from values(f"{path}[{key!r}]", entry, depth - 1)
    elif depth and is_own(value):
        for name, held in list(vars(value).items()):
            yield from values(f"{path}.{name}", held, depth - 1)


def is_own(value: object) -> bool:
    """Whether it is an object of a class of the user's, with attributes."""
    kind = type(value)
    if kind.__module__ == "builtins" or isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is None or is_users_own(file)


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


def beside(model: nn.Module) -> dict[str, tuple[int, float, float]]:
    """Tensors and arrays of floats that modules hold beside parameters and buffers: numbers, sum, sum of squares."""
    found = {}
    for path, module in model.named_modules():
        if type(module).__module__.startswith("torch."):
            continue  # what these keep they compute anew
        for name, value in vars(module).items():
            if name not in _OF_TORCH and isinstance(value, Tensor | np.ndarray) and not isinstance(value, nn.Parameter):
                tensor = torch.as_tensor(value).detach()
                if tensor.is_floating_point() and not tensor.is_meta:
                    _, total, squares = flat.digest(tensor)
                    found[f"{path or 'model'}.{name}"] = (tensor.numel(), total, squares)
    return found


def reached(owner: object, model: nn.Module) -> dict[str, object]:
    """Numbers and tensors that the code can reach and that are not in the model's state, by where they are."""
    found: dict[str, object] = {}
    for name, value in vars(owner).items() if hasattr(owner, "__dict__") else ():
        found.update(values(f"self.{name}", value))
    for path, module in model.named_modules():
        is_torchs = type(module).__module__.startswith("torch.")
        for name, value in vars(module).items():
            if name not in _OF_TORCH and not (is_torchs and name.startswith("_")):
                found.update(values(f"{path or 'model'}.{name}", value))
        if not is_torchs:
            found.update(named_by(module.forward))
    if callable(loss := getattr(owner, "loss", None)):
        found.update(named_by(loss))
    return found


def changed(before: Mapping[str, object], after: Mapping[str, object], *, lengths: bool = True) -> str:
    """The path of a value that is not what it was; empty: all are. ``lengths``: those of lists count, too."""
    skipped = "" if lengths else LENGTH.split("{", 1)[0]
    paths = (name for name, value in after.items() if name in before and before[name] != value)
    return next((path for path in paths if not (skipped and path.startswith(skipped))), "")
