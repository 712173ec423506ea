"""Lets a data set write into its arrays, as one that keeps what it has prepared does.

Workers of a host share the arrays of the data in the object store, where they are read-only. Only where the data set's
code writes into one does this process get copies of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import Dataset

from remote_agent.training.user_code.ownership import is_of_users

T = TypeVar("T")

DEPTH = 5
"""How deep data sets in data sets are entered."""

_READ_ONLY = "read-only"
"""What numpy says of an array that can't be written to."""


def calling(function: Callable[[], T], data: object) -> T:
    """Call code of ``data``, and once more with arrays of its own if it writes into a shared one."""
    try:
        return function()
    except ValueError as error:
        if _READ_ONLY not in str(error) or not _made_own(data):
            raise
        return function()


def _made_own(data: object) -> bool:
    """Give the data set copies of its read-only arrays; false: it has none."""
    found = list(_shared(data, DEPTH))
    for space, name, array in found:
        space[name] = array.copy()
    return bool(found)


def _shared(value: Any, depth: int) -> Iterator[tuple[Any, Any, np.ndarray[Any, Any]]]:
    """Where read-only arrays lie: the list or mapping, the place in it, the array."""
    space: Any = value if isinstance(value, list | dict) else getattr(value, "__dict__", {})
    is_entered = isinstance(value, list | dict | Dataset) or is_of_users(type(value).__module__)
    for name, each in list(enumerate(space) if isinstance(space, list) else space.items()) if is_entered else ():
        if type(each) is np.ndarray and not each.flags.writeable:
            yield space, name, each
        elif depth:
            yield from _shared(each, depth - 1)
