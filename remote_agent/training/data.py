"""Getting a batch out of whatever the user calls a dataset."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from remote_agent.training.errors import JobError
from remote_agent.training.order import Indices

HINT = "give a torch Dataset, a list of (x, y) samples, or a tuple of tensors of one length"


def as_dataset(data: object) -> Any:
    """``data`` so that :func:`fetch` can index it: tensors become a ``TensorDataset``, a ``DataLoader`` its dataset.

    Raises:
        JobError: it has no length or can't be indexed, or its tensors differ in length.
    """
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, tuple) and data and all(isinstance(part, torch.Tensor) for part in data):
        if len({len(part) for part in data}) != 1:
            raise JobError("the tensors of the dataset differ in length", hint=HINT)
        data = TensorDataset(*data)
    if not isinstance(data, Sized) or not hasattr(data, "__getitem__"):
        raise JobError(f"the data of type {type(data).__name__} can't be indexed", hint=HINT)
    return data


def fetch(data: Any, indices: Indices) -> Any:
    """The samples at ``indices`` as one batch on the CPU, in one operation where the data offers it.

    In this order: a ``batch(indices)`` method of the data's own (``indices``: int64 tensor), the tensors of a
    ``TensorDataset``, a tensor, torch's ``__getitems__``, and last one sample after the other, stacked.
    """
    positions = torch.from_numpy(indices)
    if callable(getattr(data, "batch", None)):
        return data.batch(positions)
    if isinstance(data, TensorDataset):
        return tuple(tensor[positions] for tensor in data.tensors)
    if isinstance(data, torch.Tensor):
        return data[positions]
    if callable(getattr(data, "__getitems__", None)):
        return default_collate(data.__getitems__(indices.tolist()))
    return default_collate([data[index] for index in indices.tolist()])
