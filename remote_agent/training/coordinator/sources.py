"""Defines the source of a run's samples: the data that workers get, and the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch.utils.data import DataLoader

from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.feed import Feed
from remote_agent.training.data import datasets, extent, ray_data, samplers
from remote_agent.training.data.extent import Begin
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.shared.slices import SliceSpan
from remote_agent.training.user_code import seeding, sending

LOOKED_AT = 20
"""Steps among which one of several samples is looked for: a single one says nothing of batches."""


class Source(Protocol):
    """One run's data.

    Attributes:
        size: number of samples; None: unknown.
        notes: notes for the plan, once it is open.
        ahead: steps whose batches workers read ahead.
    """

    size: int | None
    notes: tuple[str, ...]
    ahead: int

    def open(self, config: TrainingConfig, begin: Begin) -> tuple[TrainingConfig, SampleOrder]:
        """The resolved configuration, and the order; see :func:`extent.resolve`.

        Args:
            begin: the position at which the run starts or resumes.

        Raises:
            JobError: the data does not fit the configuration, or its code failed.
        """

    def for_workers(self) -> Any:
        """The object for the workers, from which ``datasets.fetch`` takes batches."""

    def counted(self, slices: Sequence[SliceSpan]) -> None:
        """Mark samples as counted in the weights; they are not requested again."""

    def close(self) -> None:
        """Close the source at the end of the run."""


class Indexed:
    """Data that can be indexed; the workers have all of it.

    Args:
        dataset: as :func:`datasets.as_dataset` returned it.
    """

    notes: tuple[str, ...] = ()
    ahead = 0

    def __init__(self, dataset: Any) -> None:
        self.size: int | None = job.guard("__len__", len, dataset)
        self._dataset = dataset

    def open(self, config: TrainingConfig, begin: Begin) -> tuple[TrainingConfig, SampleOrder]:
        return extent.resolve(config, len(self._dataset), begin.done, begin.start)

    def for_workers(self) -> Any:
        return self._dataset

    def counted(self, slices: Sequence[SliceSpan]) -> None:
        pass

    def close(self) -> None:
        pass


class Loaded(Indexed):
    """The dataset of a ``DataLoader``, in the loader's order and batches.

    Args:
        loader: over a dataset that can be indexed.

    Raises:
        JobError: the loader has an option that is not supported.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        samplers.refuse(loader)
        super().__init__(datasets.as_dataset(loader))
        self._loader, self.ahead = loader, datasets.LoaderOptions.of(loader).ahead

    def open(self, config: TrainingConfig, begin: Begin) -> tuple[TrainingConfig, SampleOrder]:
        resolved, order = extent.of_loader(config, self._loader, len(self._dataset), begin)
        self.notes = extent.about_loader(config, self._loader, order)
        steps = (order.step(order.done + number) for number in range(1, LOOKED_AT + 1))
        first = next(steps)
        if len(first) < 2 <= resolved.batch_size:
            first = next((each for each in steps if len(each) > 1), first)
        self._dataset.first = first
        return resolved, order


def given_by(made: job.Job, seed: int, batch: int = 0) -> object:
    """What ``create_data`` gives; a job in phases gets each batch of it once for each phase.

    Its random numbers are those of ``seed``, so that a random split of the data is the same one in
    ``create_validation_data``, after a resume and after a takeover: no sample is in both parts.
    """
    with seeding.only_here(seed):
        sending.by_value()
        given = job.guard("create_data", made.create_data)
    return samplers.repeated(given, made.phases.count, batch) if made.phases is not None else given


def source_of(given: object) -> Source:
    """Make the source of the user's ``given`` data.

    Args:
        given: what ``create_data`` returned, or the script API's ``data_loader``.

    Raises:
        JobError: it is not usable as data, or a library that it needs is missing.
    """
    if ray_data.is_ray_dataset(given):
        return Indexed(ray_data.materialized(given))
    stream = datasets.as_stream(given)
    if stream is not None:
        return Feed(stream.passes, stream.batched)
    return Loaded(given) if isinstance(given, DataLoader) else Indexed(datasets.as_dataset(given))
