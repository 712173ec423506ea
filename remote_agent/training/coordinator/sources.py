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


class Source(Protocol):
    """One run's data.

    Attributes:
        size: samples in it; None where it can't be known.
        notes: what the plan says of it, once it is open.
    """

    size: int | None
    notes: tuple[str, ...]

    def open(self, config: TrainingConfig, begin: Begin) -> tuple[TrainingConfig, SampleOrder]:
        """The configuration as it will be, and the order; see :func:`extent.resolve`.

        Args:
            config: as it was set.
            begin: where the run begins or goes on.

        Raises:
            JobError: the data does not fit the configuration, or its code failed.
        """

    def for_workers(self) -> Any:
        """What is sent to the workers: ``datasets.fetch`` takes batches from it."""

    def counted(self, slices: Sequence[SliceSpan]) -> None:
        """These samples are in the weights; they will not be asked for again."""

    def close(self) -> None:
        """The run has ended."""


class Indexed:
    """Data that can be indexed; the workers have all of it.

    Args:
        dataset: as :func:`datasets.as_dataset` gave it.
    """

    notes: tuple[str, ...] = ()

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
        JobError: it can't be honoured.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        samplers.refuse(loader)
        super().__init__(datasets.as_dataset(loader))
        self._loader = loader

    def open(self, config: TrainingConfig, begin: Begin) -> tuple[TrainingConfig, SampleOrder]:
        resolved, order = extent.of_loader(config, self._loader, len(self._dataset), begin)
        self.notes = extent.about_loader(config, self._loader, order)
        self._dataset.first = order.step(order.done + 1)
        return resolved, order


def source_of(given: object) -> Source:
    """The source that the user's ``given`` data is.

    Args:
        given: what ``create_data`` returned, or the script API's ``data_loader``.

    Raises:
        JobError: it is no data, or a library that it needs is missing.
    """
    if ray_data.is_ray_dataset(given):
        return Indexed(ray_data.materialized(given))
    stream = datasets.as_stream(given)
    if stream is not None:
        return Feed(stream.passes, stream.batched)
    return Loaded(given) if isinstance(given, DataLoader) else Indexed(datasets.as_dataset(given))
