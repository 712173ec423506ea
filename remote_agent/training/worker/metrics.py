"""Computes the metrics of a batch: the job's own ``metrics(model, batch)``, or its loss.

It gives means over the batch's samples, or pairs (sum, weight): see :mod:`~remote_agent.training.shared.figures`. What
is no mean of that kind (F1, AUC) is returned as counts, or measured by the job's ``evaluate``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from remote_agent.training import job
from remote_agent.training.user_code import losses
from remote_agent.training.worker.device.scalars import Scalars

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
    if part.factor:  # it says itself what it is a mean over
        val_loss: Any = part.value * part.factor, part.weight
    else:
        val_loss = (part.value, None) if summed else part.value
    return {"val_loss": val_loss} | {f"val_{name}": value for name, value in beside.newest().items()}


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
