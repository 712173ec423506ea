"""Reads the samples of coming slices ahead, by torch's ``DataLoader`` with the options of the user's own loader.

A worker knows which samples it will probably compute in the next steps. Their batches are prepared by the loader's
processes while the device computes. What was not foreseen (another cut, a lost worker's slice) is read when it is
needed. Random numbers are seeded by sample, so it makes no difference who reads it and how often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from remote_agent.current_call import HERE
from remote_agent.training import job
from remote_agent.training.data import datasets
from remote_agent.training.data.datasets import LoaderOptions
from remote_agent.training.shared.slices import Indices

LOADING = "the data loader"
"""Name of the reading in messages."""

Part = tuple[Indices, int]
"""Samples that are computed together, and the position of the first one in the run's order."""


class Reader:
    """Reads batches of one run's data.

    Args:
        data: what :func:`~remote_agent.training.data.datasets.fetch` takes batches from.
        seed: the run's.
    """

    def __init__(self, data: Any, seed: int) -> None:
        self._data, self._seed = data, seed
        self._options = getattr(data, "options", LoaderOptions())
        self._coming = _Coming()
        self._batches: Iterator[Any] | None = None

    def plan(self, parts: Sequence[Part]) -> None:
        """Name the parts that will probably be read next, in this order."""
        if not self._options.num_workers:
            return
        known = {_key(part) for part in self._coming.begun if part is not None}
        self._coming.planned = deque(part for part in parts if _key(part) not in known)
        if self._batches is None and self._coming.planned:
            self._batches = iter(_loader(self._data, self._seed, self._options, self._coming))

    def read(self, part: Part) -> Any:
        """Return the batch of a part, on the CPU.

        Raises:
            JobError: the user's code raised.
        """
        coming = self._coming.begun
        wanted = any(each is not None and _key(each) == _key(part) for each in coming)
        while coming and (wanted or self._is_void(coming[0], part)):
            batch, begun = self._next(), coming.popleft()
            if begun is not None and _key(begun) == _key(part):
                if batch is None:
                    break
                return batch
        return datasets.fetch(self._data, part[0], self._seed, part[1])

    def _is_void(self, begun: Part | None, part: Part) -> bool:
        """Whether what a process reads was cut otherwise than it came, or is nothing while something is planned."""
        return bool(self._coming.planned) if begun is None else begun[1] < part[1]

    def _next(self) -> Any:
        assert self._batches is not None, "a part was begun"
        HERE.enter("__getitem__")
        try:
            return next(self._batches)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise job.as_job_error(LOADING, error) from error
        finally:
            HERE.leave()


class _Coming(Sampler[Any]):
    """What the loader's processes are to read next, without an end: what is planned, else nothing.

    The reader has the loader, and this has no reference to the reader: the processes end with the last use of it.
    """

    def __init__(self) -> None:
        self.planned: deque[Part] = deque()
        self.begun: deque[Part | None] = deque()

    def __iter__(self) -> Iterator[Part | None]:
        while True:
            part = self.planned.popleft() if self.planned else None
            self.begun.append(part)
            yield part


class _Batches(Dataset[Any]):
    """A dataset whose samples are whole batches."""

    def __init__(self, data: Any, seed: int) -> None:
        self._data, self._seed = data, seed

    def __getitem__(self, part: Part | None) -> Any:
        if part is None:
            return None
        try:
            return datasets.fetch(self._data, part[0], self._seed, part[1])
        except Exception:  # noqa: BLE001 - the worker reads it again itself, and reports what the user's code raised
            return None


def _loader(data: Any, seed: int, options: LoaderOptions, coming: _Coming) -> DataLoader[Any]:
    return DataLoader(
        _Batches(data, seed),
        batch_size=None,
        sampler=coming,
        num_workers=options.num_workers,
        collate_fn=_as_it_is,
        pin_memory=options.pin_memory and torch.cuda.is_available(),
        timeout=options.timeout,
        worker_init_fn=options.worker_init_fn,
        multiprocessing_context=options.context,
        prefetch_factor=options.prefetch_factor,
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _key(part: Part) -> tuple[int, int]:
    return part[1], len(part[0])
