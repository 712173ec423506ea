"""Samples in blocks: a tensor, or tuples and dictionaries of tensors, whose first dimension counts the samples.

Lists of texts (names of samples, as ``default_collate`` leaves them) count as such tensors.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remote_agent.training.shared.slices import Indices

Batch = Any
"""A tensor, or a tuple (perhaps a named one) or dictionary of batches."""

Leaf = Tensor | NDArray[np.object_]
"""A tensor, or texts."""


@dataclass(frozen=True, eq=False)
class Block:
    """The samples number ``begin`` to ``end`` (exclusive) of a run's data, as one batch."""

    begin: int
    end: int
    batch: Batch


def as_batch(value: object) -> Batch:
    """``value`` with its arrays as tensors.

    Raises:
        ValueError: it is no structure of tensors, or their first dimensions differ, or hold nothing.
    """
    batch = _tensors(value)
    size = length(batch)
    if size < 1:
        raise ValueError("it holds no sample")
    return batch


def length(batch: Batch) -> int:
    """Samples in a batch; raises ValueError if its tensors differ in it, or one has no dimension."""
    sizes: set[int] = set()

    def look(tensor: Leaf) -> Leaf:
        if not tensor.ndim:
            raise ValueError("one of its tensors is a single number")
        sizes.add(len(tensor))
        return tensor

    _each(look, batch)
    if len(sizes) != 1:
        raise ValueError(f"its tensors have {' and '.join(map(str, sorted(sizes)))} samples")
    return sizes.pop()


def gather(positions: Indices, blocks: Sequence[Block]) -> Batch:
    """The samples at ``positions``, in that order; ``blocks`` hold them all."""
    parts, places = [], []
    for block in blocks:
        inside = np.nonzero((positions >= block.begin) & (positions < block.end))[0]
        if len(inside):
            parts.append(_select(block.batch, positions[inside] - block.begin))
            places.append(inside)
    whole = parts[0]
    if len(parts) > 1:
        back = np.argsort(np.concatenate(places), kind="stable")
        whole = _select(_each(_joined, *parts), back)
    return _each(lambda leaf: leaf if isinstance(leaf, Tensor) else leaf.tolist(), whole)


def _joined(*leaves: Leaf) -> Leaf:
    tensors = [each for each in leaves if isinstance(each, Tensor)]
    return torch.cat(tensors) if len(tensors) == len(leaves) else np.concatenate(leaves)


def _select(batch: Batch, indices: Indices) -> Batch:
    return _each(lambda leaf: leaf[torch.from_numpy(indices) if isinstance(leaf, Tensor) else indices], batch)


def _tensors(value: object) -> Batch:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, Mapping) and value:
        return _named_alike(value, {key: _tensors(part) for key, part in value.items()})
    if isinstance(value, tuple | list) and value and all(isinstance(each, str | bytes) for each in value):
        return np.array(value, dtype=object)
    if isinstance(value, tuple | list) and value:
        return _alike(value, map(_tensors, value))
    raise ValueError(f"it is a {type(value).__name__}, not a structure of tensors")


def _each(function: Callable[..., Any], *batches: Batch) -> Batch:
    """``function`` of the tensors at each place of batches of one structure."""
    first = batches[0]
    if isinstance(first, Tensor | np.ndarray):
        return function(*batches)
    if isinstance(first, Mapping):
        return _named_alike(first, {key: _each(function, *(batch[key] for batch in batches)) for key in first})
    return _alike(first, (_each(function, *parts) for parts in zip(*batches, strict=True)))


def _named_alike(given: Mapping[Any, Any], parts: dict[Any, Batch]) -> Batch:
    """A dictionary; a mapping of another kind (an encoding of Hugging Face) where ``given`` is one."""
    if type(given) is dict or not isinstance(given, dict | UserDict):
        return parts
    made: Any = copy.copy(given)
    made.update(parts)
    return made


def _alike(given: object, parts: Iterable[Batch]) -> Batch:
    """A tuple; a named one where ``given`` is."""
    return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)
