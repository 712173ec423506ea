"""How long a run is: its last step, its last sample, and the order of the samples. Pure.

With ``epochs`` a run uses exactly ``epochs * size`` samples: the last step is cut there. A step is then never larger
than the dataset. How many steps that makes is put into the configuration's ``num_iterations``, for everything that
asks. The rounds of ``local_sgd`` follow the devices' speeds: their number is an estimate, and the samples decide.
"""

from __future__ import annotations

import dataclasses

from remote_agent.training.config import TrainingConfig
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.errors import JobError


def batch_of(config: TrainingConfig, size: int) -> TrainingConfig:
    """``config`` with a batch that a dataset of ``size`` samples can fill.

    Raises:
        JobError: it can't, and no ``epochs`` say what to do then.
    """
    if size >= config.batch_size:
        return config
    if not config.epochs or not size:
        hint = f"set batch_size to {size} or less, or bring more data" if size else "bring some data"
        raise JobError(f"the dataset has {size} samples, fewer than one batch of {config.batch_size}", hint=hint)
    return dataclasses.replace(config, batch_size=size)


def resolve(config: TrainingConfig, size: int, done: int = 0, start: int = 0) -> tuple[TrainingConfig, SampleOrder]:
    """The configuration with batch and steps as they will be, and the run's order.

    Args:
        config: as it was set.
        size: samples of the dataset.
        done: steps of the checkpoint that the run goes on from.
        start: positions of the order that they used.

    Raises:
        JobError: there is nothing to do, or the dataset is smaller than a batch and no ``epochs`` are set.
    """
    config = batch_of(config, size)
    limit = config.epochs * size or None
    if limit is not None:
        step = config.batch_size * (config.local_steps if config.strategy == "local_sgd" else 1)
        config = dataclasses.replace(config, num_iterations=done + max(1, -(-(limit - start) // step)))
    check_remaining(config, done, start, limit)
    return config, SampleOrder(config.seed, size, config.batch_size, limit=limit, done=done, start=start)


def in_rounds(config: TrainingConfig, order: SampleOrder, samples: int) -> TrainingConfig:
    """``config`` with the number of rounds that the epochs are, when a round is known to have so many ``samples``."""
    if config.strategy != "local_sgd" or order.limit is None:
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
