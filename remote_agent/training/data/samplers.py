"""The order of a ``DataLoader``: its sampler is asked here, on the coordinator, once an epoch, and never on a worker.

- ``shuffle=True`` is the run's own seeded permutation, another one in every epoch; ``shuffle=False`` is 0, 1, 2, ...
- Any other sampler, and a batch sampler of the user's, is iterated over once an epoch, in turn, and what it gives is
  put on record (``order_record``). ``set_epoch`` is called if it is there. Meanwhile the global generators of
  ``random``, ``numpy`` and ``torch`` are seeded by the run's seed and the epoch; afterwards they are as before. A
  generator that sampler or loader have of their own is theirs: the order is then that of a plain loop over the loader.
- A run that goes on asks the sampler for the epochs before as well, so that it is where it would be; but the epochs on
  record are used as they are there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from remote_agent.training import job
from remote_agent.training.data import datasets
from remote_agent.training.data.order import Epochs, permutation_of
from remote_agent.training.data.order_record import Drawn, OrderRecord
from remote_agent.training.errors import JobError
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code import seeding

DEFAULT_BATCH = 64
"""Samples of a step where neither the configuration nor a loader says how many."""

MAX = 1 << 22
"""Samples after which a sampler is taken to have no end, where the run's length follows from its end."""

_AT_ONCE = 1 << 16
"""Samples, at least, that are drawn at once where the run's length does not depend on the sampler's end."""

_ENDS_HINT = "set num_iterations in the place of epochs"


class Plain:
    """Epochs of the whole dataset, shuffled or not; see :class:`~remote_agent.training.data.order.Epochs`.

    Args:
        indices: of each epoch, by its number.
    """

    same = True

    def __init__(self, indices: Callable[[int], Indices], ends: Indices) -> None:
        self._indices, self._ends = lru_cache(maxsize=2)(indices), ends

    def ends(self, epoch: int) -> Indices:
        return self._ends

    def indices(self, epoch: int) -> Indices:
        return self._indices(epoch)


class Sampled:
    """Epochs that a sampler of the user's makes; see :class:`~remote_agent.training.data.order.Epochs`.

    Args:
        loader: it is its sampler, or batch sampler.
        batch: samples of a step; 0: the batch sampler's batches are the steps.
        to_end: an epoch ends where the sampler does. False: after many samples at the latest, as nothing depends on it.
    """

    def __init__(
        self, loader: DataLoader[Any], size: int, seed: int, batch: int, record: OrderRecord, *, to_end: bool
    ) -> None:
        self.same = not batch_sampler_of(loader) and type(loader.sampler).__module__ == RandomSampler.__module__
        self._loader, self._size, self._seed, self._batch, self._record = loader, size, seed, batch, record
        self._most = max(MAX, 4 * size) if to_end else -(-max(_AT_ONCE, 2 * size) // max(1, batch)) * max(1, batch)
        self._to_end = to_end
        self._drawn = self._begun = 0
        self._rest: Iterator[Any] | None = None
        self._kept = lru_cache(maxsize=2)(self._known)

    def ends(self, epoch: int) -> Indices:
        return self._kept(epoch)[1]

    def indices(self, epoch: int) -> Indices:
        return self._kept(epoch)[0]

    def _known(self, epoch: int) -> tuple[Indices, Indices]:
        while self._drawn <= epoch:
            drawn = self._checked(self._draw())
            if self._drawn >= len(self._record):
                self._record.write(drawn)
            self._drawn += 1
        drawn = self._record.epoch(epoch)
        if drawn.batches is not None:
            return drawn.indices, np.cumsum(drawn.batches)
        ends = cut(len(drawn.indices), self._batch, self._loader.drop_last)
        return drawn.indices[: ends[-1]], ends

    def _draw(self) -> Drawn:
        with seeding.only_here(seeding.sample_seed(self._seed, self._drawn)):
            try:
                if self._rest is not None:
                    drawn = self._read(self._rest)
                    if len(drawn.indices):
                        return drawn
                return self._read(self._begin())
            except JobError:
                raise
            except Exception as error:
                raise job.as_job_error(f"the sampler {name_of(self._loader)}", error) from error

    def _begin(self) -> Iterator[Any]:
        sampler: Any = batch_sampler_of(self._loader) or self._loader.sampler
        for each in (sampler, getattr(sampler, "sampler", None)):
            set_epoch: Callable[[int], object] | None = getattr(each, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self._begun)
        self._begun += 1
        # A DataLoader draws this number first, for its processes, so what its generator gives next is the same.
        torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        return iter(sampler)

    def _read(self, given: Iterator[Any]) -> Drawn:
        """What comes of a sampler up to its end; it is kept as the rest where that is too far."""
        if batch_sampler_of(self._loader):
            batches: list[Indices] = []
            total = 0
            while total < self._most and (batch := next(given, None)) is not None:
                batches.append(self._batch_of(batch))
                total += len(batches[-1])
            found = np.concatenate([np.empty(0, np.int64), *batches])
            drawn = Drawn(found, np.array([len(batch) for batch in batches], np.int64))
        else:
            found = np.fromiter(map(self._index, islice(given, self._most)), np.int64)
            drawn = Drawn(found)
        self._rest = given if len(found) >= self._most else None
        if self._rest is not None and self._to_end:
            cause = f"the sampler {name_of(self._loader)} has no end after {len(found):,} samples"
            raise JobError(cause, hint=_ENDS_HINT)
        return drawn

    def _batch_of(self, given: Any) -> Indices:
        if not isinstance(given, Iterable) or isinstance(given, str):
            raise self._wrong(f"{given!r}, which is no batch", "a batch sampler gives lists of indices")
        batch = np.fromiter(map(self._index, given), np.int64)
        if not len(batch):
            raise self._wrong("a batch without samples", "a batch sampler gives lists of indices")
        return batch

    def _index(self, given: Any) -> int:
        try:
            if not isinstance(given, bool):
                return operator.index(given)
        except TypeError:
            pass
        raise self._wrong(
            f"{given!r}, which is no index",
            "a sampler gives whole numbers from 0 on, one for each sample; lists of them come from a batch_sampler",
        )

    def _wrong(self, what: str, hint: str) -> JobError:
        return JobError(f"the sampler {name_of(self._loader)} gave {what}", hint=hint)

    def _checked(self, drawn: Drawn) -> Drawn:
        found, epoch = drawn.indices, self._drawn + 1
        if not len(found):
            cause = f"the sampler {name_of(self._loader)} gave no sample in epoch {epoch}"
            raise JobError(cause, hint="each iter() of it has to begin anew")
        least, most = int(found.min()), int(found.max())
        if least < 0 or most >= self._size:
            wrong = least if least < 0 else most
            raise self._wrong(
                f"index {wrong} in epoch {epoch}, and the dataset has {self._size} samples",
                f"give indices from 0 to {self._size - 1}",
            )
        if drawn.batches is None and self._loader.drop_last and len(found) < self._batch:
            raise JobError(
                f"the sampler {name_of(self._loader)} gave {len(found)} samples in epoch {epoch}, fewer than one batch"
                f" of {self._batch}, and drop_last leaves them out",
                hint=f"set batch_size to {len(found)} or less, or drop_last=False",
            )
        return drawn


def epochs_of(
    loader: DataLoader[Any], size: int, seed: int, batch: int, record: Callable[[], OrderRecord], *, to_end: bool
) -> Epochs:
    """The epochs of ``loader``, as for :class:`Sampled`; raises JobError if an epoch holds no batch."""
    if batch_sampler_of(loader) or not (is_shuffle(loader) or _is_in_order(loader)):
        return Sampled(loader, size, seed, batch, record(), to_end=to_end)
    if not size:
        raise JobError("the dataset has no sample", hint="bring some data")
    ends = cut(size, batch, loader.drop_last)
    if not len(ends):
        raise JobError(
            f"the dataset has {size} samples, fewer than one batch of {batch}, and drop_last leaves them out",
            hint=f"set batch_size to {size} or less, or drop_last=False",
        )
    indices = permutation_of(seed, size) if is_shuffle(loader) else lambda _: np.arange(size)
    return Plain(indices, ends)


def is_shuffle(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` has ``shuffle=True``, without a generator of its own."""
    sampler = loader.sampler
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source) == len(loader.dataset)  # type: ignore[arg-type]
        and sampler.generator is None
    )


def _is_in_order(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` has ``shuffle=False``."""
    sampler = loader.sampler
    return type(sampler) is SequentialSampler and len(sampler.data_source) == len(loader.dataset)  # type: ignore[arg-type]


def batch_sampler_of(loader: DataLoader[Any]) -> Any:
    """The user's own batch sampler, whose batches are the steps; None: the loader cuts what its sampler gives."""
    return loader.batch_sampler if loader.batch_size is None else None


def repeated(given: object, times: int, batch: int) -> DataLoader[Any]:
    """Return a loader over the user's data that gives each batch ``times`` times, one after the other.

    Args:
        batch: samples of a batch, of data that is no loader; 0: the default.

    Raises:
        JobError: the data can't be indexed.
    """
    if datasets.as_stream(given) is not None:
        raise JobError("phases() needs data that can be indexed", hint="give a Dataset or a DataLoader over one")
    if not isinstance(given, DataLoader):
        dataset = datasets.as_dataset(given)
        size = batch or min(DEFAULT_BATCH, len(dataset))
        given = DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset), size, drop_last=False))
    refuse(given)
    return DataLoader(
        given.dataset,
        batch_sampler=_Repeated(given.batch_sampler, times),
        collate_fn=given.collate_fn,
        num_workers=given.num_workers,
        prefetch_factor=given.prefetch_factor,
        worker_init_fn=given.worker_init_fn,
        pin_memory=given.pin_memory,
        timeout=given.timeout,
        multiprocessing_context=given.multiprocessing_context,
        generator=given.generator,
    )


class _Repeated(Sampler[list[int]]):
    """Gives each batch of a sampler several times."""

    def __init__(self, batches: Any, times: int) -> None:
        self._batches, self._times = batches, times
        self.batch_size = getattr(batches, "batch_size", 0)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches:
            for _ in range(self._times):
                yield list(batch)


def name_of(loader: DataLoader[Any]) -> str:
    """What decides the order, by its class."""
    return type(batch_sampler_of(loader) or loader.sampler).__name__


def refuse(loader: DataLoader[Any]) -> None:
    """Raise a ``JobError`` for what can't be honoured, whatever the configuration."""
    given = batch_sampler_of(loader) or loader.sampler
    for each in (given, getattr(given, "sampler", None), getattr(given, "batch_sampler", None)):
        if isinstance(each, DistributedSampler) or "Distributed" in type(each).__name__:
            raise JobError(
                f"the data loader has a {type(each).__name__}, which gives one process its part; here each step is"
                " divided among the workers already",
                hint="leave the sampler out: shuffle=True gives each sample once an epoch",
            )
    if loader.batch_sampler is None:
        raise JobError(
            "the data loader has batch_size=None, so its dataset would have to give whole batches",
            hint="set the DataLoader's batch_size, or give its sampler of batches as batch_sampler",
        )
    if isinstance(given, Iterator):
        raise JobError(
            f"the data loader's sampler is a {type(given).__name__}, which can be read once",
            hint="give an object whose __iter__ begins anew in each epoch, for example a list or a torch Sampler",
        )


def cut(samples: int, batch: int, drop_last: bool) -> Indices:
    """Where the batches of an epoch of so many ``samples`` end."""
    ends = np.arange(batch, samples + 1, batch, dtype=np.int64)
    return ends if drop_last or samples % batch == 0 else np.append(ends, samples)
