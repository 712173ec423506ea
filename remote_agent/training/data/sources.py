"""Where a run's samples come from, once the user's data is understood: what the workers get, and the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import datasets, extent, ray_data
from remote_agent.training.data.feed import Feed
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.data.record import SliceSpan


class Source(Protocol):
    """One run's data.

    Attributes:
        size: samples in it; None where nobody can know.
    """

    size: int | None

    def open(self, config: TrainingConfig, done: int, start: int) -> tuple[TrainingConfig, SampleOrder]:
        """The configuration as it will be, and the order; see :func:`extent.resolve`.

        Args:
            config: as it was set.
            done: steps that the checkpoint holds which the run goes on from.
            start: positions of the order that they used.

        Raises:
            JobError: the data does not fit the configuration, or its code failed.
        """

    def for_workers(self) -> Any:
        """What is sent to the workers: ``datasets.fetch`` takes batches from it."""

    def counted(self, slices: Sequence[SliceSpan]) -> None:
        """These samples are in the weights; nobody will ask for them again."""

    def close(self) -> None:
        """The run has ended."""


class Indexed:
    """Data that can be indexed; the workers have all of it.

    Args:
        dataset: as :func:`datasets.as_dataset` gave it.
    """

    def __init__(self, dataset: Any) -> None:
        self.size: int | None = len(dataset)
        self._dataset = dataset

    def open(self, config: TrainingConfig, done: int, start: int) -> tuple[TrainingConfig, SampleOrder]:
        return extent.resolve(config, len(self._dataset), done, start)

    def for_workers(self) -> Any:
        return self._dataset

    def counted(self, slices: Sequence[SliceSpan]) -> None:
        pass

    def close(self) -> None:
        pass


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
    return Feed(stream.passes, stream.batched) if stream is not None else Indexed(datasets.as_dataset(given))
