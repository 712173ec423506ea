"""Sums one chunk's gradients for one step; each slice counts once, no matter which worker sends it or how often."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

from remote_agent.training.wire.codecs import Codec, decode
from remote_agent.training.wire.errors import MalformedFrame, NothingCounts
from remote_agent.training.wire.frames import Header


@dataclass
class ChunkSum:
    """The sum for the step after ``step``. Memory: one buffer of the chunk, for any number of slices.

    Attributes:
        total: float32, shape ``(chunk,)``: the sum so far; undefined while nothing is counted.
        step: last step that was applied to the chunk.
        counted: slices of the next step that are in ``total``.
        options: what the scheduler has set in that step, encoded.
        lock: held while any of this changes.
    """

    total: Tensor
    step: int
    counted: set[int] = field(default_factory=set)
    options: bytes = b""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _expected: tuple[int, int] = (0, 0)
    _weight: float = 0.0

    def add(self, header: Header, codec: Codec, payload: Tensor, scratch: Tensor) -> bool:
        """Count a slice's GRADIENT frame; False if it was counted already, or its step is over.

        Args:
            header: step, slice, weight, and how many slices and samples the step has.
            scratch: float32, at least the chunk's length; overwritten.

        Raises:
            MalformedFrame: the step is not the next one, or the header contradicts those of other slices.
        """
        step, index, slices, samples = header.step, header.slice, header.slices, header.samples
        if step <= self.step or index in self.counted:
            return False
        if step != self.step + 1:
            raise MalformedFrame(f"a gradient of step {step} came before step {self.step + 1} was applied")
        if header.parts:
            raise MalformedFrame(
                f"part {header.part} of a slice of step {step}: a relay adds parts up, a shard does not"
            )
        if not index < slices or not samples:
            raise MalformedFrame(f"slice {index} of {slices} slices with {samples} samples")
        if not 0 <= header.weight < math.inf:
            raise MalformedFrame(f"a slice that weighs {header.weight}")
        if not self.counted:
            self._expected, self._weight, self.options = (slices, samples), 0.0, header.options
            decode(codec, payload, self.total)
        elif self._expected != (slices, samples):
            raise MalformedFrame(
                f"step {step} has {slices} slices with {samples} samples for one worker, and"
                f" {self._expected[0]} with {self._expected[1]} for another"
            )
        elif codec.lossy:
            part = scratch[: len(self.total)]
            decode(codec, payload, part)
            self.total.add_(part)
        else:
            self.total.add_(payload.view(torch.float32))
        self.counted.add(index)
        self._weight += header.weight
        return True

    @property
    def weight(self) -> float:
        """What the slices that are in weigh together."""
        return self._weight

    @property
    def whole(self) -> bool:
        """Whether every slice of the next step is counted."""
        return bool(self.counted) and len(self.counted) == self._expected[0]

    def mean(self) -> Tensor:
        """Divide the sum, which is :attr:`whole`, by its weight, once; raises NothingCounts if that is 0."""
        if not self._weight:
            raise NothingCounts.of(self.step + 1)
        return self.total.div_(self._weight)

    def applied(self) -> None:
        """Start the sum of the next step, since this one was made."""
        self.step += 1
        self.counted.clear()
