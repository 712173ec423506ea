"""What code of the job's reads of its object's values: workers have a copy of them, as they were when it was sent.

A callback, ``evaluate`` or a scheduler that changes such a value on the coordinator (``job.beta``, for a term that
grows) changes nothing on the workers. What the code itself writes is left out: the measurement looks at that.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from remote_agent.training.user_code.ownership import is_of_users, is_users_own

MOST_ENTRIES = 100
"""Of a container, that are looked at."""

_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_LOADS_OUTSIDE = ("LOAD_GLOBAL", "LOAD_NAME")
_STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF")


@dataclass(frozen=True)
class _Uses:
    """Names of attributes and of variables that code reads, and all that it writes; whether it fills containers."""

    reads: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    fills: bool = False

    def __or__(self, other: _Uses) -> _Uses:
        return _Uses(
            self.reads | other.reads,
            self.outside | other.outside,
            self.writes | other.writes,
            self.fills or other.fills,
        )


def read_by_loss(owner: object) -> Mapping[str, object]:
    """:func:`read_by` a job's loss."""
    return of_loss(owner).values()


def of_loss(owner: object) -> Reader:
    """What a job's loss reads."""
    return Reader("self", owner, (getattr(owner, "loss", None),))


class Reader:
    """Numbers and texts that code of ``owner``'s reads and does not write, by where they are; of tensors the version.

    What the code is, is found out once: that takes a hundred times as long as reading the values.

    Args:
        path: what messages call ``owner``.
        owner: the object whose attributes the code reads.
        code: its functions; what they call of the user's own counts as well.
    """

    def __init__(self, path: str, owner: object, code: Sequence[object]) -> None:
        self._path, self._owner = path, owner
        self._functions = tuple(functions_of(owner, code))
        self._uses = functools.reduce(_Uses.__or__, (_uses(each.__code__) for each in self._functions), _Uses())
        self._names = self._uses.reads - self._uses.writes

    def values(self) -> Mapping[str, object]:
        """What they are now."""
        found: dict[str, object] = {}
        if self._names:
            for each in (*reversed(type(self._owner).__mro__), self._owner):
                for name, value in tuple(_attributes(each).items()):
                    if name in self._names:
                        found.update(_values(f"{self._path}.{name}", value, self._uses))
        for function in self._functions:
            for name, value in _outside(function).items():
                if name not in self._uses.writes and value is not self._owner:
                    found.update(_values(name, value, self._uses))
        return found


def functions_of(owner: object, code: Sequence[object]) -> Iterator[FunctionType]:
    """Functions, and what of the user's own they call: methods of their owner, functions by their names."""
    waiting = list(code)
    seen: set[FunctionType] = set()
    while waiting:
        function = plain_function(waiting.pop())
        if function is None or function in seen or not is_users_own(function.__code__.co_filename):
            continue
        seen.add(function)
        yield function
        reads = _uses(function.__code__).reads
        waiting += [value for name in reads if (value := inspect.getattr_static(type(owner), name, None)) is not None]
        held = (
            value
            for name, value in tuple(_attributes(owner).items())
            if name in reads and not isinstance(value, nn.Module)
        )
        waiting += [inspect.getattr_static(type(value), "__call__", None) for value in held]  # transforms
        waiting += _outside(function).values()


def written_by(function: FunctionType) -> frozenset[str]:
    """Names of attributes and of variables outside of it that a function sets."""
    return _uses(function.__code__).writes


def keeps_something(zero_grad: object) -> bool:
    """Whether a ``zero_grad`` of the user's own sets something beside gradients, or leaves these as they are."""
    function = plain_function(zero_grad)
    if function is None or not is_users_own(function.__code__.co_filename):
        return False
    uses = _uses(function.__code__)
    clears = "zero_grad" in uses.reads or "grad" in uses.reads | uses.writes
    return bool(uses.writes - {"grad"}) or uses.fills or not clears


def plain_function(value: object) -> FunctionType | None:
    """The function in a method, a property, a partial or a decorated function; None: it is none of these."""
    while not isinstance(value, FunctionType):
        inner = getattr(value, "fget", None) if isinstance(value, property) else None
        if isinstance(value, functools.partial):
            inner = value.func
        elif inner is None and type(value).__name__ in ("method", "staticmethod", "classmethod"):
            inner = getattr(value, "__func__", None)
        if inner is None:
            return None
        value = inner
    unwrapped = inspect.unwrap(value)
    return unwrapped if isinstance(unwrapped, FunctionType) else None


@functools.cache
def _uses(code: CodeType) -> _Uses:
    reads, outside, writes, fills = set[str](), set[str](), set[str](), False
    for each in dis.get_instructions(code):
        if each.opname in _LOADS:
            reads.add(str(each.argval))
        elif each.opname in _LOADS_OUTSIDE:
            outside.add(str(each.argval))
        elif each.opname in _STORES:
            writes.add(str(each.argval))
        fills = fills or each.opname == "STORE_SUBSCR"
    # A constant text may name an attribute: getattr(self, "beta", 1.0).
    reads.update(value for value in code.co_consts if isinstance(value, str) and value.isidentifier())
    own = _Uses(frozenset(reads), frozenset(outside), frozenset(writes), fills)
    inner = (_uses(value) for value in code.co_consts if isinstance(value, CodeType))
    return functools.reduce(_Uses.__or__, inner, own)


def _outside(function: FunctionType) -> dict[str, Any]:
    """The variables around a function, and in its module, that its code reads."""
    names = _uses(function.__code__).outside
    found = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it has no value yet
            found[name] = cell.cell_contents
    return found


def _attributes(value: object) -> Mapping[str, Any]:
    """The attributes of an object, class or module of the user's own; of others none."""
    if isinstance(value, ModuleType):
        file = getattr(value, "__file__", None)
        return vars(value) if isinstance(file, str) and is_users_own(file) else {}
    kind = value if isinstance(value, type) else type(value)
    is_own = is_of_users(kind.__module__)
    return vars(value) if is_own and hasattr(value, "__dict__") else {}


def _values(path: str, value: Any, uses: _Uses, depth: int = 2) -> Iterator[tuple[str, object]]:
    if value is None or isinstance(value, bool | int | float | str):
        yield path, value
    elif isinstance(value, Tensor):
        with contextlib.suppress(RuntimeError):  # inference tensors have no version
            yield path, (id(value), value._version)  # noqa: SLF001
    elif isinstance(value, np.ndarray):
        yield path, id(value)
    elif isinstance(value, type | nn.Module) or not depth:
        return
    elif isinstance(value, Mapping | list | tuple):
        if not uses.fills:
            entries = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, entry in list(islice(entries, MOST_ENTRIES)):
                yield from _values(f"{path}[{key!r}]", entry, uses, depth - 1)
    else:
        for name, entry in tuple(_attributes(value).items()):
            if name in uses.reads - uses.writes:
                yield from _values(f"{path}.{name}", entry, uses, depth - 1)
