"""Turns the user's data into a dataset, and gets batches from it.

- Indexable (``__len__`` and ``__getitem__``): a torch ``Dataset``, a list of ``(x, y)`` samples, columns of one length
  (a tuple, or a dictionary, of tensors, arrays or columns of pandas, a single one of them, a table of pandas), a
  ``datasets.Dataset``, a ``DataLoader`` over a dataset (with its order and its batches: :mod:`samplers`), a
  ``ray.data.Dataset``. All promises hold for it: every sample once an epoch, whatever happens.
- An iterable, which can only be read from its beginning. What it yields, by its type: a torch ``IterableDataset``, an
  iterator, or a function that makes one yields *samples*; a ``DataLoader`` over an ``IterableDataset``, one of a
  class with an ``__iter__`` of its own, and any other object with ``__iter__`` is a loader, and yields *batches*,
  whose first dimension is the batch. An attribute ``batched`` (True or False) overrules that. Each sample is used
  once, in the order in which they come.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from remote_agent.current_call import HERE
from remote_agent.training import job
from remote_agent.training.data import columns
from remote_agent.training.data.columns import collated
from remote_agent.training.errors import JobError
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code import seeding

T = TypeVar("T")

_READ_ONLY = "read-only"
"""What numpy says of an array that can't be written to."""


def with_own_arrays(function: Callable[[], T], data: object) -> T:
    """Call code of ``data``, and once more with arrays of its own if it writes into a shared one."""
    try:
        return function()
    except ValueError as error:
        if _READ_ONLY not in str(error) or not _made_own(data):
            raise
        return function()


def _made_own(data: object) -> bool:
    """Give the data set a copy of all that it holds; returns False where that can't be done."""
    if isinstance(data, list):
        data[:] = copy.deepcopy(data)
    elif hasattr(data, "__dict__"):
        vars(data).update(copy.deepcopy(vars(data)))
    else:
        return False
    return True


HINT = "give a torch Dataset, a list of (x, y) samples, a tuple or dict of arrays of one length, or an iterable"

SEVERAL = (
    "give the one to train with, and the other as validation data (create_validation_data); for several tasks, one"
    " dataset whose samples hold one of each (torch.utils.data.StackDataset), or all in turn (ConcatDataset)"
)

_SHOWN = 8
"""Indices that an error names."""


@dataclass(frozen=True)
class LoaderOptions:
    """What a worker's loader has in common with the user's.

    Attributes:
        num_workers: processes that read; 0: the worker reads each slice itself, as plain torch does.
        prefetch_factor: batches that each process reads ahead.
        worker_init_fn: called in each process with its number.
        pin_memory: batches are copied to memory from which a GPU reads faster.
        timeout: seconds that a batch may take; 0: any.
        context: how processes are started, by torch's name of it.
    """

    num_workers: int = 0
    prefetch_factor: int = 2
    worker_init_fn: Callable[[int], None] | None = None
    pin_memory: bool = False
    timeout: float = 0.0
    context: str | None = None

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> LoaderOptions:
        """Return the options of ``loader``."""
        context = loader.multiprocessing_context
        return cls(
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor or 2,
            worker_init_fn=loader.worker_init_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            context=context.get_start_method() if context is not None else None,
        )

    @property
    def ahead(self) -> int:
        """Batches that are read ahead at once."""
        return self.num_workers * self.prefetch_factor


class Collated:
    """The dataset of a ``DataLoader``.

    Args:
        dataset: indexable.
        collate: from a list of samples to a batch; None: torch's default.
        options: of the loader.

    Attributes:
        first: the samples of the run's first step, which the devices are measured with.
    """

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any] | None, options: LoaderOptions | None = None
    ) -> None:
        self.dataset, self._collate, self.options = dataset, collate, options or LoaderOptions()
        self.first = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def batch_of(self, indices: Indices, seed: int | None, begin: int) -> Any:
        """The samples at ``indices``, put together; see :func:`fetch`."""
        if self._collate is None and (isinstance(self.dataset, torch.Tensor) or _is_of_tensors(self.dataset)):
            return _fetched(self.dataset, indices, seed, begin)
        samples = _samples(self.dataset, indices, seed, begin)
        if self._collate is None:
            return collated(samples, indices.tolist())
        return job.guard(f"collate_fn of samples {_named(indices)}", self._collate, samples)


@dataclass(frozen=True)
class Stream:
    """An iterable: ``passes`` gives an iterator each time it is called, ``batched`` says what that yields."""

    passes: Callable[[], Iterable[Any]]
    batched: bool


def as_stream(data: object) -> Stream | None:
    """``data`` as a stream; None when it can be indexed, or is no data at all."""
    said = getattr(data, "batched", None)
    if isinstance(data, DataLoader):
        if not isinstance(data.dataset, IterableDataset) and not _iterates_by_itself(data):
            return None
        yields_batches = True  # with batch_size=None, too: what the dataset gives is then what a plain loop steps with
    elif _indexable(data) or (isinstance(data, tuple) and bool(data)):
        return None
    elif columns.library_of(data) == ("datasets", "IterableDataset"):
        rows: Any = data
        return Stream(lambda: rows.with_format("torch") if _format_of(rows) is None else rows, bool(said))
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


def _iterates_by_itself(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` is of a class that changes what a ``DataLoader`` yields: it is a stream of batches then."""
    own = next(kind for kind in type(loader).__mro__ if "__iter__" in vars(kind))
    return own.__module__.split(".")[0] not in ("torch", "torchdata")


def is_used_up(data: object) -> bool:
    """Whether ``data`` is an iterator from which samples may have been taken: they can't be had again."""
    fresh = inspect.isgenerator(data) and inspect.getgeneratorstate(data) == inspect.GEN_CREATED
    return isinstance(data, Iterator) and not fresh


def as_dataset(data: object) -> Any:
    """``data`` so that :func:`fetch` can index it.

    Raises:
        JobError: it has no length or can't be indexed, or its columns differ in length or hold no numbers.
    """
    if isinstance(data, DataLoader):
        collate = None if data.collate_fn is default_collate else data.collate_fn
        return Collated(_as_torch_takes_it(data.dataset), collate, LoaderOptions.of(data))
    parts = list(data.values()) if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else ()
    if parts and all(isinstance(each, DataLoader | Dataset) for each in parts):
        names = ", ".join(type(each).__name__ for each in parts)
        raise JobError(f"the data is a {type(data).__name__} of several ({names})", hint=SEVERAL)
    found = columns.library_of(data)
    if found == ("datasets", "Dataset"):
        whole: Any = columns.in_memory(data)
        return columns.Items(whole) if whole.format["type"] == "custom" else columns.Table(whole)
    if found == ("datasets", "DatasetDict") and isinstance(data, Mapping):
        splits = [f"data[{name!r}]" for name in data]
        raise JobError("the data is a DatasetDict of several splits", hint=f"give one of them: {', '.join(splits)}")
    if found == ("pandas", "DataFrame"):
        table: Any = data
        return columns.named({name: table[name] for name in table.columns})
    if columns.is_column(data):
        return columns.column("the data", data)
    if isinstance(data, Mapping) and data and all(isinstance(name, str) for name in data):  # no sample has a name
        return columns.named(data)
    if isinstance(data, tuple) and _are_columns(data):
        named = {f"part {number} of the tuple": part for number, part in enumerate(data, start=1)}
        tensors = {name: columns.column(name, part) for name, part in named.items()}
        columns.check_lengths(tensors)
        return TensorDataset(*tensors.values())
    return _as_torch_takes_it(data)


def _as_torch_takes_it(data: Any) -> Any:
    """What a ``DataLoader`` can index, too, in the place of ``data``."""
    if columns.library_of(data) == ("datasets", "Dataset"):
        whole = columns.in_memory(data)
        return columns.Items(whole) if whole.format["type"] == "custom" else whole
    if not _indexable(data):
        cause = f"the data of type {type(data).__name__} can't be indexed"
        if hasattr(data, "__getitem__"):
            cause = f"the data of type {type(data).__name__} has no length: it has no __len__"
        raise JobError(cause, hint=HINT)
    return data


def _are_columns(parts: tuple[Any, ...]) -> bool:
    """Whether a tuple is of columns, and not of samples: arrays, and perhaps lists beside them."""
    return any(map(columns.is_column, parts)) and all(
        isinstance(part, list) or columns.is_column(part) for part in parts
    )


def _format_of(rows: Any) -> object:
    """The format of an ``IterableDataset`` of Hugging Face; None: Python's own objects."""
    return getattr(rows._formatting, "format_type", None)  # noqa: SLF001 - it has no other name


def _indexable(data: object) -> bool:
    return isinstance(data, Sized) and hasattr(data, "__getitem__")


def fetch(data: Any, indices: Indices, seed: int | None = None, begin: int = 0) -> Any:
    """The samples at ``indices`` as one batch on the CPU, in one operation where the data offers it.

    In this order: a ``batch(indices)`` method of the data's own (``indices``: int64 tensor), the tensors of a
    ``TensorDataset``, a tensor, torch's ``__getitems__``, and last one sample after the other, stacked.

    Args:
        data: as :func:`as_dataset` gave it.
        indices: int64 of shape ``(samples,)``.
        seed: the run's: the random numbers of the user's code are seeded for each sample (:mod:`seeding`), and torch's
            generator is afterwards as it was. None: they are left alone.
        begin: the position of the first sample in the run's order; the others follow it.

    Raises:
        JobError: the user's code raised; it names the function and the sample.
    """
    if seed is None or isinstance(data, torch.Tensor | columns.Columns | columns.Table) or _is_of_tensors(data):
        return _fetched(data, indices, None, begin)
    with seeding.apart():
        return _fetched(data, indices, seed, begin)


def to_measure(data: Any) -> Indices:
    """Samples that a device is measured with: of the run's first step, or all."""
    return data.first if isinstance(data, Collated) and len(data.first) else np.arange(len(data))


def _fetched(data: Any, indices: Indices, seed: int | None, begin: int) -> Any:
    if isinstance(data, Collated):
        return data.batch_of(indices, seed, begin)
    if _is_of_tensors(data):
        return tuple(tensor[torch.from_numpy(indices)] for tensor in data.tensors)
    if isinstance(data, torch.Tensor):
        return data[torch.from_numpy(indices)]
    if callable(getattr(data, "batch", None)):
        called = partial(_seeded, seed, begin, data.batch, torch.from_numpy(indices))
        return job.guard(f"batch({_named(indices)})", with_own_arrays, called, data)
    return collated(_samples(data, indices, seed, begin), indices.tolist())


def _is_of_tensors(data: Any) -> bool:
    """Whether all samples can be had at once: a subclass of ``TensorDataset`` may give others than its tensors hold."""
    return isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__


def _samples(data: Any, indices: Indices, seed: int | None, begin: int) -> list[Any]:
    """One sample after the other, or all at once by torch's ``__getitems__``."""
    # torch's own Subset has it too, and there each sample can be had by itself.
    if callable(getattr(data, "__getitems__", None)) and not isinstance(data, Subset):
        called = partial(_seeded, seed, begin, data.__getitems__, indices.tolist())
        return list(job.guard(f"__getitems__({_named(indices)})", with_own_arrays, called, data))
    found = []
    HERE.enter("__getitem__")
    for place, index in enumerate(indices.tolist()):
        HERE.sample(index)
        called = partial(_seeded, seed, begin + place, operator.getitem, data, index)
        try:
            found.append(with_own_arrays(called, data))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise job.as_job_error(f"__getitem__({index})", error) from error
    HERE.leave()
    return found


def _seeded(seed: int | None, position: int, function: Callable[..., Any], *arguments: Any) -> Any:
    if seed is not None:
        seeding.seed_all(seeding.sample_seed(seed, position))
    return function(*arguments)


def _named(indices: Indices) -> str:
    """Indices in an error's words: the first few."""
    said = ", ".join(map(str, indices[:_SHOWN].tolist()))
    return said if len(indices) <= _SHOWN else f"{said}, ... {len(indices)} in all"
