"""Defines a slice's samples: indices into the dataset, and positions in the run's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Part ``number`` ``of`` those of a slice, each with samples of its own; ``of`` 0: the whole slice."""

    number: int = 0
    of: int = 0


WHOLE = Part()


def counted_at(spans: int, peers: Sequence[str]) -> list[str | int]:
    """For each span of a step what is one to the shards: its relay with the others there, or its own number."""
    return [(peers[index] if peers else "") or index for index in range(spans)]


@dataclass(frozen=True)
class SliceSpan:
    """A slice that was counted in a step: positions ``begin`` to ``end`` (exclusive), by ``worker``.

    Where a slice was issued again after a loss, ``worker`` is the one that delivered it in the end.
    """

    worker: str
    begin: int
    end: int
