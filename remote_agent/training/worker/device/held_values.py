"""Remembers the values that a user's object holds, in little memory, to detect changes outside of the weights."""

from __future__ import annotations

import inspect
import io
import itertools
import math
import random
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from remote_agent.training.shared import flat
from remote_agent.training.user_code.ownership import is_of_users, is_users_own

MOST_ENTRIES = 100
"""Of a container, that are looked at."""

MOST_NUMBERS = 1_000_000
"""Of a tensor, that are looked at: of a larger one every so many."""

LENGTH = "len({})"
"""The name of how long a list or a dict is: what is only added to it may be for the user's own log."""

ELSEWHERE = "elsewhere"
"""Beside a value in an optimizer, a sampler or a data set that the job keeps: training uses others than its copies."""

ITERATOR = "an iterator"
"""In the place of an iterator, which does not tell where it is."""

OF_TORCH = frozenset(vars(nn.Module()))
"""What each module has: parameters, buffers and submodules lie there."""


def values(path: str, value: object, depth: int = 2) -> Iterator[tuple[str, object]]:
    """Numbers, tensors, random generators and iterators in ``value``, each with its ``path``; how long lists are.

    Containers and objects of the user's own classes are entered ``depth`` deep.
    """
    if isinstance(value, bool | int | float):
        yield path, value
    elif isinstance(value, Tensor | np.ndarray):
        if isinstance(value, np.memmap):  # some of its numbers lie all over a disk
            return
        tensor = torch.as_tensor(value)
        if tensor.layout == torch.strided and not tensor.is_nested:
            yield path, flat.digest(flat.some(tensor, MOST_NUMBERS) if tensor.numel() >= MOST_NUMBERS else tensor)
    elif isinstance(value, nn.Module | torch.optim.Optimizer | Dataset | Sampler | DataLoader):
        yield from _of_torchs(path, value, depth)
    elif (state := _state_of(value)) is not None:
        yield path, state
    elif isinstance(value, set):
        yield path, len(value)
    elif isinstance(value, Mapping | list | tuple | deque) and depth:
        if not isinstance(value, tuple):
            yield LENGTH.format(path), len(value)
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, entry in list(islice(entries, MOST_ENTRIES)):
            yield from values(f"{path}[{key!r}]", entry, depth - 1)
    elif depth and (is_own(value) or is_own_class(value)):
        for name, held in list(vars(value).items()):
            yield from values(f"{path}.{name}", held, depth - 1)
    elif isinstance(value, Iterator) and not isinstance(value, io.IOBase):
        yield path, ITERATOR


def _of_torchs(path: str, value: Any, depth: int) -> Iterator[tuple[str, object]]:
    """What is in an object of a class of torch's, or of one that is made from it."""
    if isinstance(value, nn.Module):
        for name, tensor in value.state_dict().items():
            if isinstance(tensor, Tensor):
                yield from values(f"{path}.{name}", tensor)
        for name, module in value.named_modules():
            yield from _attributes(f"{path}.{name}".rstrip("."), module, depth)
    elif isinstance(value, torch.optim.Optimizer):
        for number, group in enumerate(value.param_groups):
            options = {name: option for name, option in group.items() if isinstance(option, bool | int | float)}
            yield from (
                (f"{path}.param_groups[{number}][{name!r}]", (ELSEWHERE, option)) for name, option in options.items()
            )
    elif depth:
        for name, held in list(vars(value).items()):
            yield from ((place, (ELSEWHERE, each)) for place, each in values(f"{path}.{name}", held, depth - 1))


def is_elsewhere(value: object) -> bool:
    """Whether a value of :func:`values` is one of :data:`ELSEWHERE`."""
    return isinstance(value, tuple) and value[:1] == (ELSEWHERE,)


def _state_of(value: object) -> object:
    """Where a random generator or a counter is; None: it is none."""
    if isinstance(value, torch.Generator):
        return flat.fingerprint(value.get_state())
    if isinstance(value, np.random.Generator | np.random.RandomState):
        return repr(value.bit_generator.state if isinstance(value, np.random.Generator) else value.get_state())
    if isinstance(value, random.Random):
        return hash(value.getstate())
    return repr(value) if isinstance(value, itertools.count) else None


def _attributes(path: str, module: nn.Module, depth: int = 2) -> Iterator[tuple[str, object]]:
    """What a module holds beside its parameters, buffers and submodules."""
    is_torchs = type(module).__module__.startswith("torch.")
    for name, value in list(vars(module).items()):
        if depth and name not in OF_TORCH and not (is_torchs and name.startswith("_")):
            yield from values(f"{path}.{name}", value, depth)


def has_rows(value: object, samples: int) -> bool:
    """Whether a value of :func:`values` is of a tensor with a row for each of so many samples."""
    return isinstance(value, tuple) and isinstance(value[0], tuple) and samples in value[0]


def is_own(value: object) -> bool:
    """Whether it is an object of a class of the user's, with attributes."""
    kind = type(value)
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    return is_of_users(kind.__module__)


def is_own_class(value: object) -> bool:
    """Whether it is a class of the user's."""
    return isinstance(value, type) and is_of_users(value.__module__)


def named_by(function: object, seen: set[object]) -> Iterator[tuple[str, object]]:
    """Numbers and tensors that a function of the user's keeps, or reaches by name outside of itself, by that name.

    They lie in its attributes and defaults, in its module or in a function around it, in objects and classes there, and
    in modules of the user's. What functions of the user's reach that it names counts as well.
    """
    code: object = getattr(function, "__func__", function)
    code = inspect.unwrap(code) if callable(code) else code
    if not isinstance(code, FunctionType) or code in seen:
        return
    seen.add(code)
    if not is_of_users(code.__module__):
        return
    for name, value in {**vars(code), **(code.__kwdefaults__ or {})}.items():
        yield from values(f"{code.__name__}.{name}", value)
    yield from values(f"{code.__name__}.__defaults__", code.__defaults__ or ())
    try:
        outside = inspect.getclosurevars(code)
    except ValueError:  # a variable around it has no value yet
        return
    for name, value in {**outside.globals, **outside.nonlocals}.items():
        if name == "__class__":  # of super()
            continue
        if isinstance(value, ModuleType):
            yield from _of_module(name, value, seen)
        elif isinstance(value, FunctionType):
            yield from named_by(value, seen)
        else:
            yield from values(name, value)


def _of_module(path: str, module: ModuleType, seen: set[object]) -> Iterator[tuple[str, object]]:
    """What a module of the user's keeps, and its functions."""
    file = getattr(module, "__file__", None)
    if module in seen or file is None or not is_users_own(file):
        return
    seen.add(module)
    for name, value in list(vars(module).items()):
        if isinstance(value, FunctionType):
            yield from named_by(value, seen)
        else:
            yield from values(f"{path}.{name}", value)


def _of_class(kind: type, seen: set[object]) -> Iterator[tuple[str, object]]:
    """What a class of the user's and its methods keep and reach."""
    for each in kind.__mro__:
        if each in seen:
            continue
        seen.add(each)
        if not is_own_class(each):
            continue
        for name, value in list(vars(each).items()):
            if isinstance(value, FunctionType | staticmethod | classmethod):
                yield from named_by(value, seen)
            else:
                yield from values(f"{each.__name__}.{name}", value)


def beside(model: nn.Module) -> dict[str, tuple[int, float, float]]:
    """Tensors, arrays and floats that modules hold beside parameters and buffers: numbers, sum, sum of squares."""
    found = {}
    for path, module in model.named_modules():
        if type(module).__module__.startswith("torch."):
            continue  # what these keep they compute anew
        for name, value in _attributes(path or "model", module):
            if isinstance(value, float):
                value = (), value, value * value
            if isinstance(value, tuple) and math.isfinite(value[2]):
                shape, total, squares = value
                found[name] = (math.prod(shape), total, squares)
    return found


def reached(owner: object, model: nn.Module) -> dict[str, object]:
    """Numbers and tensors that the code can reach and that are not in the model's state, by where they are."""
    found: dict[str, object] = {}
    seen: set[object] = set()
    for name, value in vars(owner).items() if hasattr(owner, "__dict__") else ():
        found.update(values(f"self.{name}", value))
    for path, module in model.named_modules():
        found.update(_attributes(path or "model", module))
        found.update(_of_class(type(module), seen))
        for function in (module.forward, *module._forward_pre_hooks.values(), *module._forward_hooks.values()):  # noqa: SLF001
            found.update(named_by(function, seen))
    found.update(_of_class(owner if isinstance(owner, type) else type(owner), seen))
    found.update(named_by(getattr(owner, "loss", None), seen))
    return found


def objects(*holders: object, depth: int = 2) -> Iterator[Any]:
    """What can be changed of what these hold: lists, dicts, tensors, and objects of the user's classes."""
    waiting: list[tuple[Any, int]] = [(each, depth) for each in holders]
    seen: set[int] = set()
    while waiting:
        value, left = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            waiting += [(module, left) for module in value.children()]
        if isinstance(value, Tensor | np.ndarray):
            yield value
            continue
        if isinstance(value, list | deque):
            inside = list(value)[:MOST_ENTRIES]
        elif isinstance(value, dict) or is_own(value):
            space = value if isinstance(value, dict) else vars(value)
            inside = [each for name, each in list(space.items())[:MOST_ENTRIES] if name not in OF_TORCH]
        else:
            continue
        yield value
        waiting += [(each, left - 1) for each in inside if left]


def are_figures(before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    """Whether all values that changed between two looks are single numbers: a meter, a count for a progress line."""
    return all(
        isinstance(value, bool | int | float) or (isinstance(value, tuple) and value[0] in ((), (1,)))
        for name, value in after.items()
        if name in before and not _is_same(before[name], value)
    )


def changed(before: Mapping[str, object], after: Mapping[str, object], *, lengths: bool = True) -> str:
    """The path of a value that is not what it was; empty: all are. ``lengths``: those of lists count, too."""
    skipped = "" if lengths else LENGTH.split("{", 1)[0]
    paths = (name for name, value in after.items() if name in before and not _is_same(before[name], value))
    return next((path for path in paths if not (skipped and path.startswith(skipped))), "")


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one == other or (one != one and other != other)  # two that are no number are the same
