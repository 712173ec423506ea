"""Defines a slice's samples: indices into the dataset, and positions in the run's order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SliceSpan:
    """A slice that was counted in a step: positions ``begin`` to ``end`` (exclusive), by ``worker``.

    Where a slice was issued again after a loss, ``worker`` is the one that delivered it in the end.
    """

    worker: str
    begin: int
    end: int
