"""Evaluates batches of the validation data on a device, without changing the model or the random generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from remote_agent.current_call import HERE
from remote_agent.training import job
from remote_agent.training.data import datasets
from remote_agent.training.errors import JobError, TrainingError
from remote_agent.training.shared.figures import TERM, Figures, figures_of, merged
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code import losses
from remote_agent.training.user_code.losses import PartLoss
from remote_agent.training.user_code.user_errors import is_out_of_memory
from remote_agent.training.worker.device import device as devices
from remote_agent.training.worker.device.scalars import Scalars
from remote_agent.training.worker.device.untouched import untouched

Metrics = Callable[[nn.Module, Any], Mapping[str, Any]]
"""``metrics(model, batch)``: by name a mean over the batch's samples, or a pair (sum, weight)."""


def metrics_of(factory: Any, *, summed: bool = False) -> Metrics:
    """The job's own ``metrics``; else its loss as ``val_loss``, with ``accuracy`` for the default cross entropy.

    ``summed``: the loss adds its samples up; ``val_loss`` is the mean over the samples all the same.
    """
    own: Metrics | None = getattr(factory, "metrics", None)
    if own is not None:
        return own
    if getattr(factory, "loss", None) is None:
        return partial(_of_cross_entropy, summed)
    loss = job.loss_function(factory)
    return partial(_of_loss, loss, summed)


def _of_loss(loss: Callable[[nn.Module, Any], Any], summed: bool, model: nn.Module, batch: Any) -> Mapping[str, Any]:
    """The loss as ``val_loss``, and the figures that it gives beside it."""
    beside = Scalars(loss)
    part = losses.of_part(beside.loss, model, batch, 0)
    found = {f"val_loss{TERM}{number}": _figure(term, summed) for number, term in enumerate(part.terms)}
    found = found or {"val_loss": _figure(part, summed)}
    return found | {f"val_{name}": value for name, value in beside.newest().items()}


def _figure(part: PartLoss, summed: bool) -> Any:
    if part.factor:  # it says itself what it is a mean over
        return part.value * part.factor, part.weight
    return (part.value, None) if summed else part.value


def _of_cross_entropy(summed: bool, model: nn.Module, batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping) and "labels" in batch:
        return _of_loss(losses.function_of(None), summed, model, batch)  # the model's own
    inputs, targets = batch.values() if isinstance(batch, Mapping) else batch
    scores = model(inputs)
    losses.check_classes(scores, targets)
    if targets.is_floating_point():  # probabilities of the classes
        right, counted = scores.argmax(1) == targets.argmax(1), torch.ones_like(scores.argmax(1), dtype=torch.bool)
    else:
        right, counted = scores.argmax(1) == targets, targets != losses.IGNORED
    return {
        "val_loss": (functional.cross_entropy(scores, targets, reduction="sum"), counted.sum()),
        "accuracy": (right.logical_and(counted).sum(), counted.sum()),
    }


METRICS = "metrics"
"""The user's function, in errors."""

SAME = 1e-3
"""Figures that differ by less are the same: devices round, and few metrics that keep state hide it so well."""


class BatchMeter:
    """Evaluates batches with one model on one device.

    A batch that does not fit into memory is computed in halves. Its random numbers are seeded by the run and the
    batch's number, so every worker gets the same metrics.

    Args:
        dtype: dtype of autocast in forward; None: no autocast.

    Attributes:
        changing: names of the model's buffers and frozen parameters that the job's code changes.
    """

    def __init__(
        self, model: nn.Module, metrics: Metrics, device: torch.device, seed: int, dtype: torch.dtype | None = None
    ) -> None:
        self.changing: Sequence[str] = ()
        self._model, self._metrics, self._device, self._seed, self._dtype = model, metrics, device, seed, dtype

    def __call__(
        self, data: Any, batches: Sequence[tuple[int, Indices]], *, checked: bool = False
    ) -> dict[int, Figures]:
        """The metrics of ``batches``, by their numbers.

        Args:
            batches: numbers and indices.
            checked: the first batch is evaluated again, after a part of it, and has to give the same.

        Raises:
            JobError: the job's metrics, model or data raised, or the metrics keep what they saw.
        """
        devices.select(self._device)
        found = self._evaluated(data, batches)
        if checked:
            self._refuse_state(data, *batches[0], found[batches[0][0]])
        return found

    def _evaluated(self, data: Any, batches: Sequence[tuple[int, Indices]]) -> dict[int, Figures]:
        with untouched(self._model, self._device, self.changing), torch.no_grad():
            self._model.eval()
            return {number: self._of(data, number, indices) for number, indices in batches}

    def _refuse_state(self, data: Any, number: int, indices: Indices, seen: Figures) -> None:
        """Metrics that are others once another batch was seen would mix all evaluations of a worker, and no others'."""
        if len(indices) < 2:
            return
        self._evaluated(data, [(number, indices[: len(indices) // 2])])
        again = self._evaluated(data, [(number, indices)])[number]
        for name, pair in seen.items():
            if name not in again or not np.allclose(pair, again[name], rtol=SAME, atol=SAME, equal_nan=True):
                raise JobError(
                    f"{METRICS} gives another {name} for the same batch once it has seen another one: it keeps what it"
                    " saw (a torchmetrics object?), which is another on each worker",
                    hint="compute it anew from each batch, as counts (sum, weight), or measure in evaluate(model)",
                )

    def _of(self, data: Any, number: int, indices: Indices) -> Figures:
        seed = hash((self._seed, number)) & 0xFFFFFFFF  # of numbers alone: the same in each process
        devices.seed(self._device, seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            batch = devices.move(datasets.fetch(data, indices), self._device)
        except TrainingError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise job.as_job_error("the validation data", error) from error
        try:
            with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
                HERE.enter(METRICS, int(indices[0]), len(indices))
                measured = self._metrics(self._model, batch)
            return figures_of(measured, len(indices))
        except TrainingError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if not is_out_of_memory(error) or len(indices) == 1:
                raise job.as_job_error(METRICS, error) from error
        finally:
            HERE.leave()
        # Outside of the handler: what the failure held is free again.
        del batch
        devices.release_memory(self._device)
        half = len(indices) // 2
        return merged(self._of(data, number, part) for part in (indices[:half], indices[half:]))
