"""What the data gives a worker: the same sample each time that it is taken, and a row for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from remote_agent.training.data.datasets import Collated
from remote_agent.training.shared.slices import Indices
from remote_agent.training.worker.device import held_values

DEPTH = 4
"""How deep batches and data sets in data sets are entered."""


IN_PLACE = (
    "forward or loss changes {name} in place, and the data set keeps the change: the same samples are others the next"
    " time that they are taken"
)

Taken = Mapping[str, object]
"""Numbers of a batch, by where they are."""


class Fetches(Protocol):
    """What fetches samples; see :class:`~remote_agent.training.worker.device.compute.SliceComputer`."""

    data: Any
    rows: Rows

    def fetched(self, indices: Indices, begin: int, seed: int | None = None) -> Any:
        """These samples."""


def taken(computer: Fetches, indices: Indices) -> Taken:
    """What these samples are now."""
    return dict(held_values.values("batch", computer.fetched(indices, 0, 0), DEPTH))


def unlike(computer: Fetches, indices: Indices, earlier: Taken | None = None) -> tuple[str, str]:
    """Why the run can't use the data, and what the user should know: the same samples are others when taken again.

    The first one: numbers of the data set changed with them, or loss changed them. The other: nothing was seen to
    change (a generator, the clock). Empty: not so. What a batch looks like is noted. ``earlier`` is what was
    :func:`taken` before a loss of these samples; None: not known.
    """
    before = dict(_numbers("", computer.data, DEPTH))
    batches = [computer.fetched(indices[:count], 0, 0) for count in (len(indices), len(indices), len(indices) // 2)]
    first, again = (dict(held_values.values("batch", batch, DEPTH)) for batch in batches[:2])
    computer.rows.note(batches[0], len(indices))
    computer.rows.note(batches[2], len(indices) // 2)
    if first.keys() == again.keys() and not held_values.changed(first, again):
        changed = held_values.changed(earlier or {}, first)
        return (IN_PLACE.format(name=changed) if changed else ""), ""
    name = held_values.changed(before, dict(_numbers("", computer.data, DEPTH)))
    others = "the same samples of the data are others each time that they are taken"
    if name:
        return f"{others}, and {name} of the data set changes with that: each worker would have its own", ""
    return "", (
        f"{others} (a generator of the data set's own?): each worker has a copy of it, and may draw the same numbers as"
        " another one; draw from the global generators of random, numpy or torch, which are seeded for each sample"
    )


def _numbers(path: str, value: object, depth: int) -> Iterator[tuple[str, object]]:
    """Numbers in the attributes of a data set, and of those that it is made of."""
    if isinstance(value, bool | int | float | Tensor | np.ndarray):
        yield from held_values.values(path, value)
    elif isinstance(value, list | tuple) and depth:  # those of a ConcatDataset
        for entry in islice(value, held_values.MOST_ENTRIES):
            if isinstance(entry, Dataset):
                yield from _numbers(path, entry, depth - 1)
    elif depth and (isinstance(value, Dataset | Collated) or held_values.is_own(value)):
        for name, held in list(vars(value).items()):
            yield from _numbers(name, held, depth - 1)


class Rows:
    """Whether batches have a row for each sample: where they had, one with fewer has lost some (a ``collate_fn``)."""

    def __init__(self) -> None:
        self._places: frozenset[str] | None = None  # of tensors and lists with a row for each sample

    def note(self, batch: Any, samples: int) -> None:
        """The measurement got this batch of so many samples."""
        found = frozenset(place for place, length in _lengths("", batch, DEPTH) if length == samples)
        self._places = found if self._places is None else self._places & found

    def lost(self, batch: Any, samples: int) -> str:
        """What is wrong with a batch of so many samples; empty: nothing."""
        lengths = {length for place, length in _lengths("", batch, DEPTH) if place in (self._places or ())}
        if not lengths or samples in lengths:
            return ""
        return (
            f"{samples} samples became a batch of {max(lengths)} rows (does collate_fn leave some out?), and"
            " a mean over these is no mean over samples"
        )


def _lengths(place: str, batch: Any, depth: int) -> Iterator[tuple[str, int]]:
    """The first dimensions of a batch's tensors, and the lengths of its lists, by where they are."""
    if isinstance(batch, Tensor):
        if batch.dim():
            yield place, batch.size(0)
        return
    entries: Any = ()
    if isinstance(batch, list | tuple):
        yield place, len(batch)
        entries = enumerate(batch)
    elif isinstance(batch, Mapping):
        entries = batch.items()
    elif held_values.is_own(batch):
        entries = vars(batch).items()
    if depth:
        for name, entry in entries:
            yield from _lengths(f"{place}.{name}", entry, depth - 1)
