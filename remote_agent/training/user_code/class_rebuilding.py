"""Rebuilds classes that came by value without calls of what the user's code has for the making of a class.

cloudpickle first makes an empty class, and gives it its attributes afterwards. A registry, in ``__init_subclass__`` or
in a metaclass, that asks a class for its name or takes an argument (``class Net(Base, name="net")``) fails with an
empty one. What it did when the job's file ran comes with the job, as all of the state of its modules.

The members of an ``Enum`` are made of their values; attributes that its ``__init__`` gave them are sent beside.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ray.cloudpickle import cloudpickle

from remote_agent.training.user_code.ownership import is_of_users

_HOOK, _OF_METACLASSES = "__init_subclass__", ("__new__", "__init__", "__prepare__")
_OF_MEMBERS = frozenset({"_name_", "_value_", "_sort_order_", "__objclass__"})
_make = cloudpickle._make_skeleton_class  # noqa: SLF001 - the only place where it makes a class


def install() -> None:
    """Have classes rebuilt so in this process, those of the data included."""
    cloudpickle._make_skeleton_class = _quietly  # noqa: SLF001


@functools.wraps(_make)
def _quietly(kind: type, name: str, bases: Sequence[Any], *others: Any) -> Any:
    with contextlib.ExitStack() as stack:
        for each in _users(base for given in types.resolve_bases(bases) for base in given.__mro__):
            stack.enter_context(_without(each, _HOOK, classmethod(_nothing)))
        for each in _users(kind.__mro__):
            for hook in _OF_METACLASSES:
                stack.enter_context(_without(each, hook))
        return _make(kind, name, bases, *others)


def _users(kinds: Iterable[type]) -> list[type]:
    return [each for each in dict.fromkeys(kinds) if is_of_users(each.__module__)]


@contextlib.contextmanager
def _without(kind: type, name: str, instead: object = None) -> Iterator[None]:
    """Have a class define something else by this name, or nothing; one that does not define it stays as it is."""
    if name not in vars(kind):
        yield
        return
    own = vars(kind)[name]
    if instead is None:
        delattr(kind, name)
    else:
        setattr(kind, name, instead)
    try:
        yield
    finally:
        setattr(kind, name, own)


def _nothing(_: type, /, **given: object) -> None:
    pass


def with_members(kind: enum.EnumMeta, made: Any) -> Any:
    """What cloudpickle made of an ``Enum`` to send it, with the attributes of its members."""
    if not isinstance(made, tuple) or len(made) != 6:
        return made
    members: dict[str, Any] = dict(kind.__members__)
    held = {name: {n: v for n, v in vars(each).items() if n not in _OF_MEMBERS} for name, each in members.items()}
    return (*made[:2], (made[5], made[2], held), None, None, _fill)


def _fill(kind: Any, state: tuple[Callable[[Any, Any], Any], Any, dict[str, dict[str, Any]]]) -> None:
    fill, of_class, held = state
    fill(kind, of_class)
    for name, attributes in held.items():
        vars(kind.__members__[name]).update(attributes)
