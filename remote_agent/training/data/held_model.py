"""Finds a model in a job's data: samples that follow its weights are not what a plain loop would give.

In one process the data would use the weights of the present step. Here workers train copies, and the data keeps the
first weights.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from types import FunctionType, GeneratorType, MethodType, ModuleType

import numpy as np
from torch import Tensor, nn

from remote_agent.training.user_code.ownership import is_users_own

MOST = 2000
"""Objects that are looked at."""

ENTRIES = 20
"""Of a container, that are looked at."""

_CLOSED = (type, ModuleType, Tensor, np.ndarray)
"""Not entered; nor is the job itself, of which a collate_fn may be a method."""

NOTE = (
    "the data holds the model: what it makes with the weights (the actions of a policy, hard negatives) it makes with"
    " the first ones, and not, as in plain torch, with those of the step"
)


def note(data: object, model: nn.Module) -> tuple[str, ...]:
    """What the plan says of ``data`` that holds ``model``, or a module of it; empty: it holds none."""
    modules = {id(module) for module in model.modules()}
    waiting, seen = deque([data]), set[int]()
    while waiting and len(seen) < MOST:
        value = waiting.popleft()
        if id(value) in modules:
            return (NOTE,)
        if id(value) not in seen:
            seen.add(id(value))
            waiting.extend(_parts(value))
    return ()


def _parts(value: object) -> Iterator[object]:
    """What an object holds, or reaches by the names in its functions."""
    if isinstance(value, Mapping):
        yield from islice(value.values(), ENTRIES)
    elif isinstance(value, list | tuple | set | deque):
        yield from islice(value, ENTRIES)
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, GeneratorType):
        yield from value.gi_frame.f_locals.values() if value.gi_frame is not None else ()
    elif isinstance(value, FunctionType):
        yield from _named(value)
    elif not isinstance(value, _CLOSED) and not hasattr(value, "create_model") and hasattr(value, "__dict__"):
        yield from list(vars(value).values())
        yield from chain.from_iterable(vars(kind).values() for kind in type(value).__mro__ if kind is not object)


def _named(function: FunctionType) -> Iterator[object]:
    """What a function of the user's names outside of itself."""
    if not is_users_own(function.__code__.co_filename):
        return
    try:
        outside = inspect.getclosurevars(function)
    except ValueError:  # a variable around it has no value yet
        return
    yield from (*outside.nonlocals.values(), *outside.globals.values())
