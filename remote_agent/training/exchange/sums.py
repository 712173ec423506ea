"""Sums of one chunk's gradients for one step: each slice counts once, whoever sends it and however often."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

from remote_agent.training.codecs import Codec
from remote_agent.training.exchange.agreement import decode
from remote_agent.training.exchange.errors import MalformedFrame


@dataclass
class ChunkSum:
    """What is in for the step after ``step``. Memory: one buffer of the chunk, however many slices there are.

    Attributes:
        total: float32, shape ``(chunk,)``: the sum so far; meaningless while nothing is counted.
        step: last step that was applied to the chunk.
        counted: slices of the next step that are in ``total``.
        lock: held while any of this changes.
    """

    total: Tensor
    step: int
    counted: set[int] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _expected: tuple[int, int] = (0, 0)

    def add(
        self, step: int, index: int, slices: int, samples: int, codec: Codec, payload: Tensor, scratch: Tensor
    ) -> bool:
        """Count slice ``index`` of ``step``; False if it was counted already, or its step is over.

        Args:
            step: the step.
            index: the slice's number.
            slices: how many slices the step has.
            samples: how many samples they have together.
            codec: of the payload.
            payload: the gradient sum.
            scratch: float32, at least the chunk's length; overwritten.

        Raises:
            MalformedFrame: the step is not the next one, or what is said about it is not what others said.
        """
        if step <= self.step or index in self.counted:
            return False
        if step != self.step + 1:
            raise MalformedFrame(f"a gradient of step {step} came before step {self.step + 1} was applied")
        if not index < slices or not samples:
            raise MalformedFrame(f"slice {index} of {slices} slices with {samples} samples")
        if not self.counted:
            self._expected = (slices, samples)
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
        return True

    @property
    def whole(self) -> bool:
        """Every slice of the next step is in."""
        return bool(self.counted) and len(self.counted) == self._expected[0]

    def mean(self) -> Tensor:
        """Divide the sum by the step's samples and give it; once, when it is :attr:`whole`."""
        return self.total.div_(self._expected[1])

    def applied(self) -> None:
        """The step was made: the next one starts from nothing."""
        self.step += 1
        self.counted.clear()
