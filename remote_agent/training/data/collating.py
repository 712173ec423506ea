"""Samples put together by torch's ``default_collate``, and what is wrong with those that can't be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from remote_agent.errors import first_line
from remote_agent.training.errors import JobError


def collated(samples: Sequence[Any], names: Sequence[int]) -> Any:
    """``samples`` as one batch.

    Args:
        samples: at least one.
        names: the number of each in the data.

    Raises:
        JobError: two differ in their shape, or one can't be in a batch.
    """
    try:
        return default_collate(list(samples))
    except (RuntimeError, TypeError, KeyError) as error:
        shapes = [shape_of(sample) for sample in samples]
        other = next((place for place, shape in enumerate(shapes) if shape != shapes[0]), 0)
        if other:
            raise JobError(
                f"samples {names[0]} and {names[other]} can't be put together: {shapes[0]} and {shapes[other]}",
                hint="give a DataLoader with a collate_fn that pads them" + _if_columns(samples),
            ) from error
        if isinstance(error, TypeError):
            raise JobError(
                f"sample {names[0]} can't be put into a batch: {shapes[0]}: {first_line(error)}",
                hint="make tensors, arrays and numbers of it, or give a DataLoader with a collate_fn",
            ) from error
        raise


def shape_of(sample: Any) -> str:
    """What a sample consists of, in words: ``([3, 32, 32], number)``."""
    if isinstance(sample, torch.Tensor | np.ndarray):
        return str(list(sample.shape))
    if isinstance(sample, int | float | np.number):
        return "number"
    if isinstance(sample, str | bytes):
        return "text"
    if isinstance(sample, Mapping):
        return "{" + ", ".join(f"{key!r}: {shape_of(value)}" for key, value in sample.items()) + "}"
    if isinstance(sample, tuple):
        return "(" + ", ".join(map(shape_of, sample)) + ")"
    if isinstance(sample, list):
        return f"list of {len(sample)}"
    return type(sample).__name__


def _if_columns(samples: Sequence[Any]) -> str:
    """A hint for a user who gave a list of whole columns."""
    is_columns = all(isinstance(sample, torch.Tensor | np.ndarray) and sample.ndim for sample in samples)
    if is_columns and len({len(sample) for sample in samples}) == 1:
        return "; or a tuple (x, y), if these are the inputs and targets of all samples"
    return ""
