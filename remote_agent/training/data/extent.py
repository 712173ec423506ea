"""Defines the length of a run: its last step, its last sample, and the order of the samples.

With ``epochs`` a run ends with the last sample of its last epoch; the last step is cut there. How many steps that makes
is put into the configuration's ``num_iterations``, for everything that asks. The rounds of ``local_sgd`` follow the
devices' speeds: their number is an estimate, and the samples decide.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from remote_agent.strategies import spec_of
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import samplers
from remote_agent.training.data.order import EpochOrder, SampleOrder
from remote_agent.training.data.order_record import OrderRecord
from remote_agent.training.data.samplers import DEFAULT_BATCH
from remote_agent.training.errors import JobError


@dataclass(frozen=True, kw_only=True)
class Begin:
    """Where a run begins, or goes on.

    Attributes:
        done: steps that were made before: 0, or those of a checkpoint.
        start: positions of the order that they used.
        batch: samples of each of them; 0: not known.
        earlier: the folder of the run that they were made in, perhaps the same one; None: there are none.
    """

    folder: Path
    done: int = 0
    start: int = 0
    batch: int = 0
    earlier: Path | None = None


def batch_of(config: TrainingConfig, size: int) -> TrainingConfig:
    """``config`` with a batch that a dataset of ``size`` samples can fill.

    Raises:
        JobError: it can't fill the one that is set, and no ``epochs`` say what to do then.
    """
    batch = config.batch_size or min(DEFAULT_BATCH, size)
    if size < batch or not size:
        if not config.epochs or not size:
            hint = f"set batch_size to {size} or less, or bring more data" if size else "bring some data"
            raise JobError(
                f"the dataset has {size} samples, fewer than one batch of {batch or DEFAULT_BATCH}", hint=hint
            )
        batch = size
    return dataclasses.replace(config, batch_size=batch)


def resolve(config: TrainingConfig, size: int, done: int = 0, start: int = 0) -> tuple[TrainingConfig, SampleOrder]:
    """The configuration with batch and steps as they will be, and the order, of data without a loader.

    Args:
        size: samples of the dataset.
        done: steps of the checkpoint that the run goes on from.
        start: positions of the order that they used.

    Raises:
        JobError: there is nothing to do, or the dataset is smaller than a batch and no ``epochs`` are set.
    """
    config = batch_of(config, size)
    limit = config.epochs * size or None
    config = _with_steps(config, done, start, limit)
    check_remaining(config, done, start, limit)
    return config, SampleOrder(config.seed, size, config.batch_size, limit=limit, done=done, start=start)


def of_loader(
    config: TrainingConfig, loader: DataLoader[Any], size: int, begin: Begin
) -> tuple[TrainingConfig, EpochOrder]:
    """As :func:`resolve`, of a ``DataLoader``: with its order, and its batches where ``batch_size`` is not set.

    Raises:
        JobError: as :func:`resolve`; or its sampler can't be honoured here, or failed.
    """
    own_batches = samplers.batch_sampler_of(loader) is not None
    if own_batches:
        _check_own_batches(config, loader)
    batch = 0 if own_batches else config.batch_size or int(loader.batch_size or 0)
    if begin.start and loader.drop_last and begin.batch != batch:
        raise JobError(
            f"the checkpoint's steps had {begin.batch} samples and these would have {batch}: with drop_last its epochs"
            " had other samples",
            hint=f"set batch_size to {begin.batch}, or start a new run",
        )
    epochs = samplers.epochs_of(
        loader, size, config.seed, batch, lambda: OrderRecord(begin.folder, begin.earlier), to_end=bool(config.epochs)
    )
    largest = batch
    if own_batches:
        ends = epochs.ends(0)
        largest = int(max(ends[0], *(ends[1:] - ends[:-1]), 0))
    config = dataclasses.replace(config, batch_size=largest)
    order = EpochOrder(
        epochs,
        size,
        config.batch_size,
        count=config.epochs,
        whole=not spec_of(config.strategy).rounds,
        done=begin.done,
        start=begin.start,
    )
    if config.epochs and not spec_of(config.strategy).rounds:
        config = dataclasses.replace(config, num_iterations=begin.done + max(1, order.steps_left()))
    else:
        config = _with_steps(config, begin.done, begin.start, order.limit)
    check_remaining(config, begin.done, begin.start, order.limit)
    return config, order


def about_loader(given: TrainingConfig, loader: DataLoader[Any], order: EpochOrder) -> tuple[str, ...]:
    """What the plan says of a loader; ``given`` is the configuration as it was set."""
    length, steps = order.first_epoch
    by = "shuffled by the run's seed" if samplers.is_shuffle(loader) else f"ordered by {samplers.name_of(loader)}"
    said = [f"the data loader's {order.size:,} samples, {by}: {length:,} in {steps:,} batches an epoch"]
    if loader.batch_size is not None and given.batch_size not in (0, loader.batch_size):
        said.append(f"batch_size={given.batch_size} is used in the place of the data loader's {loader.batch_size}")
    if callable(getattr(loader.dataset, "set_epoch", None)):
        said.append(
            "the dataset's set_epoch is not called, as each worker has a copy of it: in __getitem__, draw from the"
            " global generators, which give other numbers in each epoch"
        )
    return tuple(said)


def in_rounds(config: TrainingConfig, order: SampleOrder, samples: int) -> TrainingConfig:
    """``config`` with the number of rounds that the epochs are, when a round is known to have so many ``samples``."""
    if not spec_of(config.strategy).rounds or order.limit is None:
        return config
    return dataclasses.replace(config, num_iterations=order.done + -(-(order.limit - order.start) // samples))


def check_remaining(config: TrainingConfig, done: int, start: int, limit: int | None) -> None:
    """Raise a ``JobError`` when a checkpoint leaves nothing to do."""
    if limit is not None and start >= limit:
        raise JobError(f"the checkpoint of step {done} holds all {config.epochs} epochs", hint="set epochs to more")
    if limit is None and done >= config.num_iterations:
        raise JobError(
            f"the checkpoint of step {done} holds all {config.num_iterations} steps", hint="set num_iterations to more"
        )


def _with_steps(config: TrainingConfig, done: int, start: int, limit: int | None) -> TrainingConfig:
    """``config`` with the number of its steps, where the samples up to ``limit`` decide it."""
    if limit is None:
        return config
    step = config.batch_size * (config.local_steps if spec_of(config.strategy).rounds else 1)
    return dataclasses.replace(config, num_iterations=done + max(1, -(-(limit - start) // step)))


def _check_own_batches(config: TrainingConfig, loader: DataLoader[Any]) -> None:
    """Raise a ``JobError`` where a batch sampler's batches can't be the steps."""
    name = samplers.name_of(loader)
    if spec_of(config.strategy).rounds:
        raise JobError(
            f"strategy={config.strategy} has no steps that could be the batches of the batch_sampler {name}",
            hint="use strategy=sync or strategy=allreduce, or a sampler in the place of the batch_sampler",
        )
    if config.batch_size not in (0, getattr(loader.batch_sampler, "batch_size", 0)):
        raise JobError(
            f"batch_size={config.batch_size} is set, and the batches of the batch_sampler {name} are the steps",
            hint="leave batch_size out, or give the DataLoader a sampler in the place of the batch_sampler",
        )
