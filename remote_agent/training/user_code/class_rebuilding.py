"""Rebuilds classes that came by value without a call of the ``__init_subclass__`` of the user's base classes.

cloudpickle first makes an empty class, and gives it its attributes afterwards: a registry that asks the class for its
name, or takes an argument (``class Net(Base, name="net")``), fails with such a class. What it did when the job's file
ran comes with the job, as all of the state of its modules.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any

from ray.cloudpickle import cloudpickle

from remote_agent.training.user_code.ownership import is_of_users

_HOOK = "__init_subclass__"
_make = cloudpickle._make_skeleton_class  # noqa: SLF001 - the only place where it makes a class


def install() -> None:
    """Have classes rebuilt so in this process, those of the data included."""
    cloudpickle._make_skeleton_class = _quietly  # noqa: SLF001


@functools.wraps(_make)
def _quietly(kind: Any, name: str, bases: Sequence[Any], *others: Any) -> Any:
    with _without_hooks(bases):
        return _make(kind, name, bases, *others)


@contextlib.contextmanager
def _without_hooks(bases: Sequence[Any]) -> Iterator[None]:
    above = dict.fromkeys(each for base in types.resolve_bases(bases) for each in base.__mro__)
    hooks = {each: vars(each)[_HOOK] for each in above if _HOOK in vars(each) and is_of_users(each.__module__)}
    for each in hooks:
        setattr(each, _HOOK, classmethod(_nothing))
    try:
        yield
    finally:
        for each, hook in hooks.items():
            setattr(each, _HOOK, hook)


def _nothing(_: type, /, **given: object) -> None:
    pass
