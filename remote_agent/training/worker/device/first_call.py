"""Finds what only the first call of a loss sets outside of the model's state, from its samples or random numbers.

A mean of the first batch that inputs are normalised by, the first losses that later ones are divided by, a flag that
says that a codebook was filled: each worker would have its own, as it begins with other samples, and the measurement's
call would have been the first one. A cache (a mask, a table of positions) is the same whichever samples come first.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from remote_agent.training.shared.findings import FIRST
from remote_agent.training.worker.device import held_values
from remote_agent.training.worker.device.comparing import Seen, is_same

LOG = logging.getLogger(__name__)

MOST_ENTRIES, MOST_NUMBERS = 100_000, 10_000_000
"""Of a container, and of all tensors and arrays together, that are kept; what has more is data."""

_ABSENT = object()


class Held:
    """What model, job and data hold now beside parameters and buffers; :meth:`put_back` brings it back."""

    def __init__(self, owner: object, model: nn.Module, data: object = None) -> None:
        self.data = tuple(_of_data(data))
        self._back = list(_backs(owner, model, self.data))

    @torch.no_grad()
    def put_back(self) -> None:
        """Have it as it was."""
        for back in self._back:
            back()


def set_by_first(
    owner: object, model: nn.Module, made: Held, whole: Callable[[], Seen], part: Callable[[], Seen]
) -> str:
    """What the first call sets, and a loss depends on, in words that begin with :data:`FIRST`; empty: nothing.

    Args:
        owner: the job's object.
        model: its model.
        made: what was held before the first call of all.
        whole: gives the loss of some samples, from the same state and random numbers each time.
        part: the same of a part of them, with other random numbers.
    """
    now = Held(owner, model, made.data)

    def held() -> dict[str, object]:
        found = held_values.reached(owner, model)
        for each in made.data:
            for name, value in tuple(vars(each).items()):
                found.update(held_values.values(f"{type(each).__name__}.{name}", value))
        return found

    try:
        made.put_back()
        first = whole()
        by_whole = held()
        made.put_back()
        before = held()
        part()
        by_part = held()
        second = whole()
    except Exception as error:  # noqa: BLE001 - whatever the job's code raises that was begun again
        LOG.info("what the first call sets is not known: %s", error)
        return ""
    finally:
        now.put_back()
    if is_same(first, second) and all(torch.allclose(first.state[n], each) for n, each in second.state.items()):
        return ""
    set_ = [path for path, value in by_part.items() if before.get(path, _ABSENT) != value and path[:4] != "len("]
    unlike = [path for path in set_ if by_whole.get(path, _ABSENT) != by_part[path]]
    return next((FIRST + path for path in (*unlike, *set_)), "")


def _of_data(data: object, depth: int = 4) -> Iterator[object]:
    """The user's own objects in a data set: itself, its transforms, what puts samples together."""
    if isinstance(data, tuple):
        for each in data:
            yield from _of_data(each, depth)
    elif held_values.is_own(data):
        yield data
    elif depth and hasattr(data, "__dict__"):
        for name in ("dataset", "datasets", "_dataset", "_given", "_collate"):
            inside = vars(data).get(name)
            yield from _of_data(tuple(inside) if isinstance(inside, list) else inside, depth - 1)


def _backs(owner: object, model: nn.Module, data: Sequence[object]) -> Iterator[Callable[[], object]]:
    room = MOST_NUMBERS
    for value in held_values.objects(owner, model, *data):
        if isinstance(value, Tensor | np.ndarray):
            back = _back_of_numbers(value, room)
            room -= int(np.prod(value.shape)) if back else 0
            yield from back
        elif isinstance(value, list | deque):
            if len(value) <= MOST_ENTRIES:
                yield functools.partial(_refill, value, list(value))
        else:
            space = value if isinstance(value, dict) else vars(value)
            if len(space) <= MOST_ENTRIES:
                kept = {name: each for name, each in tuple(space.items()) if name not in held_values.OF_TORCH}
                yield functools.partial(_restore, space, kept)


def _back_of_numbers(value: Any, most: int) -> list[Callable[[], object]]:
    """What brings the numbers of a tensor or an array back, which may be changed in place; none of large ones."""
    if isinstance(value, np.ndarray):
        is_kept = value.flags.writeable and value.size <= most and not isinstance(value, np.memmap)
        return [functools.partial(np.copyto, value, value.copy())] if is_kept else []
    is_kept = value.layout == torch.strided and not value.requires_grad and not value.is_inference()
    if not is_kept or value.is_nested or value.is_meta or value.numel() > most or isinstance(value, nn.Parameter):
        return []
    return [functools.partial(value.copy_, value.clone())]


def _refill(values: list[Any] | deque[Any], before: list[Any]) -> None:
    values.clear()
    values.extend(before)


def _restore(space: MutableMapping[Any, Any], before: dict[Any, Any]) -> None:
    for name, value in tuple(space.items()):
        if name in held_values.OF_TORCH or not _is_plain(value):  # a file or a connection would be opened again
            continue
        if name in before:
            space[name] = before[name]
        else:
            del space[name]
    space.update({name: value for name, value in before.items() if name not in space})


def _is_plain(value: object) -> bool:
    """Whether it holds numbers, as far as can be told, and is no resource."""
    return value is None or isinstance(value, _PLAIN) or held_values.is_own(value)


_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, deque, Tensor, np.ndarray, np.generic)
