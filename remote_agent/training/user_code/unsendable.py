"""Sends what is another one in each process (a lock), and names what can't be sent at all.

An object with a ``__getattr__`` of the user's is sent without a call of that: pickle asks such an object for methods
that it has not, also before it has any attribute, and one that stands for another object then asks itself for ever.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ray import cloudpickle

from remote_agent.training.errors import JobError
from remote_agent.training.user_code.ownership import is_of_users, is_users_own
from remote_agent.training.user_code.user_errors import headline

MOST_ENTRIES = 1000
"""Of a container, that are looked at."""

HINT = (
    "make it where it is used first, in each process: `if self.file is None: self.file = open(...)` in loss or"
    " __getitem__, with None in its place until then"
)

_ANEW: tuple[Callable[[], Any], ...] = (threading.Lock, threading.RLock, threading.local)


_USUAL, _UNUSUAL = ("__reduce_ex__", "__reduce__", "__getstate__"), ("__setstate__", "__getnewargs_ex__")

_reduce = cloudpickle.CloudPickler.reducer_override


def install() -> None:
    """Have these packed from now on: locks and thread's own values as new ones."""
    cloudpickle.CloudPickler.reducer_override = _reduced
    for make in _ANEW:
        copyreg.pickle(type(make()), lambda _, make=make: (make, ()))  # type: ignore[misc]


def _reduced(pickler: Any, value: Any) -> Any:
    kind = type(value)
    asked = getattr(kind, "__getattr__", None)
    if not isinstance(asked, FunctionType) or not is_users_own(asked.__code__.co_filename) or not _is_plain(kind):
        return _reduce(pickler, value)
    given = kind.__getnewargs__(value) if hasattr(kind, "__getnewargs__") else ()
    names = [name for name in copyreg._slotnames(kind) if _is_set(value, name)]  # type: ignore[attr-defined]  # noqa: SLF001
    slots = {name: object.__getattribute__(value, name) for name in names}
    held = object.__getattribute__(value, "__dict__") if _is_set(value, "__dict__") else {}
    entries = iter(value) if isinstance(value, list) else None
    items = iter(dict.items(value)) if isinstance(value, dict) else None
    return copyreg.__newobj__, (kind, *given), (held, slots), entries, items, _fill  # type: ignore[attr-defined]


def _is_plain(kind: type) -> bool:
    """Whether objects of a class are packed as Python does it, by their attributes."""
    is_usual = all(getattr(kind, name) is getattr(object, name) for name in _USUAL)
    return is_usual and not any(hasattr(kind, name) for name in _UNUSUAL) and kind not in copyreg.dispatch_table


def _is_set(value: object, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True


def _fill(value: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    held, slots = state
    if held:
        object.__getattribute__(value, "__dict__").update(held)
    for name, each in slots.items():
        object.__setattr__(value, name, each)


def refusal(what: str, name: str, value: object, error: BaseException) -> JobError:
    """Why ``what`` can't be sent to the workers, with the variable or attribute of it that is to blame.

    Args:
        name: what messages call ``value``.
        error: what packing it raised.
    """
    path, why = _culprit(name, value, error, {id(value)})
    where = f"{path}: " if path != name else ""
    return JobError(f"{what} can't be sent to the workers: {where}{headline(why)}", hint=HINT)


def _culprit(path: str, value: object, error: BaseException, seen: set[int]) -> tuple[str, BaseException]:
    """The innermost part of ``value`` that can't be packed, and what packing it raises."""
    for name, part in _parts(path, value):
        if id(part) not in seen:
            seen.add(id(part))
            try:
                cloudpickle.dumps(part)
            except Exception as why:  # noqa: BLE001 - whatever the objects raise
                return _culprit(name, part, why, seen)
    return path, error


def _parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    """What is packed with ``value``, by where it is."""
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", entry) for key, entry in list(islice(value.items(), MOST_ENTRIES)))
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{number}]", entry) for number, entry in enumerate(value[:MOST_ENTRIES]))
    elif isinstance(value, functools.partial):
        yield from ((path, each) for each in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, MethodType):
        yield from ((path, value.__self__), (path, value.__func__))
    elif isinstance(value, FunctionType):
        if not is_users_own(value.__code__.co_filename):  # torch.compile's has the name of what it wraps
            return
        with contextlib.suppress(ValueError):  # a variable around it has no value yet
            outside = inspect.getclosurevars(value)
            yield from {**outside.globals, **outside.nonlocals}.items()
    elif isinstance(value, type):
        named = vars(value).items() if is_of_users(value.__module__) else ()
        yield from ((f"{value.__name__}.{name}", inspect.unwrap(_plain(held))) for name, held in named)
    elif hasattr(value, "__dict__") and _is_entered(type(value)):
        yield from ((f"{path}.{name}", held) for name, held in list(vars(value).items()))
        yield type(value).__name__, type(value)


def _is_entered(kind: type) -> bool:
    """Whether messages name what is in such an object: of the user's, or around a data set of theirs."""
    around = ("torch.utils.data", "remote_agent")
    return not issubclass(kind, ModuleType) and (is_of_users(kind.__module__) or kind.__module__.startswith(around))


def _plain(held: Any) -> Any:
    """The function of a method."""
    return getattr(held, "__func__", getattr(held, "fget", held))
