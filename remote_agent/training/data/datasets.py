"""What the user gives as data, and getting a batch out of it.

- Indexable (``__len__`` and ``__getitem__``): a torch ``Dataset``, a list of ``(x, y)`` samples, a tuple of tensors of
  one length, a ``DataLoader`` over such a dataset (its ``collate_fn`` is used; order and batch size are the run's), a
  ``ray.data.Dataset``. All promises hold for it: every sample once an epoch, whatever happens.
- An iterable, which can only be read from its beginning. What it yields, by its type: a torch ``IterableDataset``, an
  iterator, or a function that makes one yields *samples*; a ``DataLoader`` and any other object with ``__iter__`` is a
  loader, and yields *batches*, whose first dimension is the batch. An attribute ``batched`` (True or False) overrules
  that. Each sample is used once, in the order in which they come.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from remote_agent.training.data.order import Indices
from remote_agent.training.errors import JobError

HINT = "give a torch Dataset, a list of (x, y) samples, a tuple of tensors of one length, or an iterable"


class Collated:
    """A dataset whose samples a function of the user's puts together.

    Args:
        dataset: indexable.
        collate: from a list of samples to a batch.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def batch(self, indices: torch.Tensor) -> Any:
        """The samples at ``indices``, put together."""
        return self._collate([self._dataset[index] for index in indices.tolist()])


@dataclass(frozen=True)
class Stream:
    """An iterable: ``passes`` gives an iterator each time it is called, ``batched`` says what that yields."""

    passes: Callable[[], Iterable[Any]]
    batched: bool


def as_stream(data: object) -> Stream | None:
    """``data`` as a stream; None when it can be indexed, or is no data at all."""
    said = getattr(data, "batched", None)
    if isinstance(data, DataLoader):
        if not isinstance(data.dataset, IterableDataset):
            return None
        yields_batches = data.batch_size is not None
    elif _indexable(data) or (isinstance(data, tuple) and bool(data)):
        return None
    elif isinstance(data, IterableDataset | Iterator):
        yields_batches = False
    elif isinstance(data, Iterable):
        yields_batches = True
    elif callable(data):
        return Stream(data, bool(said))
    else:
        return None
    known: Iterable[Any] = data
    return Stream(lambda: known, yields_batches if said is None else bool(said))


def is_used_up(data: object) -> bool:
    """Whether ``data`` is an iterator of which somebody may have taken samples: they can't be had again."""
    fresh = inspect.isgenerator(data) and inspect.getgeneratorstate(data) == inspect.GEN_CREATED
    return isinstance(data, Iterator) and not fresh


def as_dataset(data: object) -> Any:
    """``data`` so that :func:`fetch` can index it: tensors become a ``TensorDataset``, a ``DataLoader`` its dataset.

    Raises:
        JobError: it has no length or can't be indexed, or its tensors differ in length.
    """
    if isinstance(data, DataLoader):
        whole = as_dataset(data.dataset)
        return whole if data.collate_fn is default_collate else Collated(whole, data.collate_fn)
    if isinstance(data, tuple) and data and all(isinstance(part, torch.Tensor) for part in data):
        if len({len(part) for part in data}) != 1:
            raise JobError("the tensors of the dataset differ in length", hint=HINT)
        data = TensorDataset(*data)
    if not _indexable(data):
        raise JobError(f"the data of type {type(data).__name__} can't be indexed", hint=HINT)
    return data


def _indexable(data: object) -> bool:
    return isinstance(data, Sized) and hasattr(data, "__getitem__")


def fetch(data: Any, indices: Indices) -> Any:
    """The samples at ``indices`` as one batch on the CPU, in one operation where the data offers it.

    In this order: a ``batch(indices)`` method of the data's own (``indices``: int64 tensor), the tensors of a
    ``TensorDataset``, a tensor, torch's ``__getitems__``, and last one sample after the other, stacked.
    """
    positions = torch.from_numpy(indices)
    if callable(getattr(data, "batch", None)):
        return data.batch(positions)
    if isinstance(data, TensorDataset):
        return tuple(tensor[positions] for tensor in data.tensors)
    if isinstance(data, torch.Tensor):
        return data[positions]
    if callable(getattr(data, "__getitems__", None)):
        return default_collate(data.__getitems__(indices.tolist()))
    return default_collate([data[index] for index in indices.tolist()])
