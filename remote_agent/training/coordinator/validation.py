"""Cuts the validation data into batches that stay the same for the whole run.

Any free worker computes a whole batch, and the metrics are added in the order of the batches. So the result does not
depend on which worker computed which batch, or was lost meanwhile. Nor does the cut depend on the number of devices,
since a metric may depend on which samples are together: the cut follows from settings and inventory.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from remote_agent.goals import Goal
from remote_agent.settings import OF_VALIDATION
from remote_agent.training import job
from remote_agent.training.checkpoint.checkpoint import Checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.request import Request
from remote_agent.training.data import datasets, ray_data
from remote_agent.training.errors import JobError
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code import seeding

PARTS = 64
"""Least batches, if there are enough samples, so that all devices finish at about the same time."""

MIN = 16
"""Batches are not made smaller than this number of samples for that."""


@dataclass(frozen=True)
class Validation:
    """The validation data of a run.

    Attributes:
        data: the object from which ``datasets.fetch`` takes batches.
        batches: the samples' indices of each batch, int64 of shape ``(samples of the batch,)``.
    """

    data: Any
    batches: tuple[Indices, ...]


def of_job(request: Request, config: TrainingConfig) -> Validation | None:
    """The run's validation data; None: the job has none.

    Args:
        request: the run, with the configuration as it was given.
        config: the run's, with its batch size.

    Raises:
        JobError: it can't be used, or there is none but the configuration needs it.
    """
    if request.job.create_validation is None:
        wanted = [name for name in OF_VALIDATION if getattr(config, name)]
        if wanted:
            raise JobError(
                f"{wanted[0]}={getattr(config, wanted[0])}: the job has no validation data",
                hint="give the trainer validation_data, the job a create_validation_data(), or leave the setting out",
            )
        return None
    with seeding.only_here(config.seed):
        given = job.guard("create_validation_data", request.job.create_validation)
    limits = [spec.max_batch for spec in (*request.devices, *request.away) if spec.max_batch]
    asked = dataclasses.replace(config, unit=request.config.unit)  # one that was chosen follows the number of devices
    return validation_of(given, asked, min(limits, default=None))


def check_plateau(plateau: str, keep_best: str, validation: Validation | None, found: Checkpoint | None = None) -> None:
    """Raise a ``JobError`` if a scheduler needs a validation that does not exist, or has the opposite direction.

    So it does if the scheduler would get figures of two metrics, one before and one after a resume.

    Args:
        plateau: the direction of the scheduler: ``min`` or ``max``; empty: it does not use the validation.
        found: the checkpoint from which the run resumes; None: it is a new run.
    """
    if not plateau:
        return
    if validation is None:
        raise JobError(
            "create_scheduler gave a ReduceLROnPlateau, which goes by the validation, and there is no validation data",
            hint="give validation_data, or use a scheduler that goes by the number of steps, as CosineAnnealingLR",
        )
    goal = Goal.of(keep_best)
    if (plateau == "min") != (goal.sign == 1):
        named = f"keep_best={keep_best}" if keep_best else f"{goal.metric}, which it goes by,"
        better = "less" if goal.sign == 1 else "more"
        raise JobError(
            f"the ReduceLROnPlateau has mode={plateau}, and {named} says that {better} is better",
            hint="give it the other mode, or name the metric that it is to go by in keep_best",
        )
    if found is not None and found.watched and found.goal != goal:
        before = found.config.get("keep_best") or found.goal.metric
        raise JobError(
            f"the ReduceLROnPlateau went by {before} up to step {found.step}, and would go by {goal.metric} now",
            hint=f"resume with keep_best={before}, or start a new run",
        )


def validation_of(given: object, config: TrainingConfig, most: int | None = None) -> Validation:
    """Prepare the user's validation data.

    The batches of a ``DataLoader`` are those that it would yield, with its sampler, batch size and ``drop_last``; a
    shuffled order is drawn once, from the run's seed. All other data is used in its own order, in batches of ``unit``
    samples if that is set, else of at most ``batch_size``.

    Args:
        given: what ``create_validation_data`` returned, or the script API's ``validation_data``.
        most: most samples that the smallest device takes at a time; None: any.

    Raises:
        JobError: it can't be indexed, or holds no sample.
    """
    if ray_data.is_ray_dataset(given):
        given = ray_data.materialized(given)
    if datasets.as_stream(given) is not None:
        raise JobError(
            "the validation data can only be read from its beginning",
            hint="give validation data with a length that can be indexed: a torch Dataset, a list, a tuple of tensors",
        )
    try:
        data = datasets.as_dataset(given)
    except JobError as error:
        raise JobError(f"validation: {error.cause}", hint=error.hint) from error
    if isinstance(given, DataLoader) and given.batch_sampler is not None:
        batches = job.guard("the validation data's sampler", _batches_of, given, config.seed)
    else:
        batches = _cut(len(data), config, most)
    if not batches:
        raise JobError("the validation data has no sample", hint="bring some, or leave validation_data out")
    return Validation(data, batches)


def _batches_of(loader: DataLoader[Any], seed: int) -> tuple[Indices, ...]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = [np.asarray(list(batch), dtype=np.int64) for batch in loader.batch_sampler or ()]
    return tuple(batch for batch in drawn if len(batch))


def _cut(samples: int, config: TrainingConfig, most: int | None) -> tuple[Indices, ...]:
    if config.unit:
        size = min(config.unit, config.batch_size or config.unit)
    else:
        limits = [limit for limit in (config.batch_size, config.micro_batch, most) if limit]
        size = min(*limits, max(MIN, math.ceil(samples / PARTS)), max(1, samples))
    return tuple(np.arange(begin, min(begin + size, samples)) for begin in range(0, samples, size))
