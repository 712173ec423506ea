"""Dynamic loss scaling for one device that computes in float16.

Small gradients vanish in float16, so the loss is multiplied by a scale before backward, and gradients are divided by it
in float32 as they leave backward (Micikevicius et al., "Mixed precision training", ICLR 2018). Where numbers overflow,
the scale was too large: it is halved and the slice is computed again. Nothing is skipped, so that each sample counts.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from remote_agent.training.errors import JobError

FIRST, MIN, MAX = 2.0**16, 2.0**-16, 2.0**24
"""Scales: to begin with, and the limits."""

GROWTH_INTERVAL = 2000
"""Good slices in a row after which the scale is doubled."""


class LossScale:
    """The scale, and what it is applied to.

    Args:
        parameters: whose gradients leave backward divided by the scale. They get a hook that runs before any other use
            of the gradient. What a loss itself differentiates by them (``torch.autograd.grad``) is not scaled and
            stays as it is.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.value = FIRST
        self._good = 0
        self._factor: float | None = None  # None: backward is not under way
        self._overflow: Tensor | None = None
        for parameter in parameters:
            parameter.register_hook(self._unscale)  # type: ignore[no-untyped-call]

    def backward(self, loss: Tensor, factor: float) -> None:
        """Backward of ``factor`` times the ``loss``. The factor stays out of float16, where it could overflow."""
        self._factor = factor / self.value
        try:
            (loss * self.value).backward()  # type: ignore[no-untyped-call]
        finally:
            self._factor = None

    def settle(self) -> bool:
        """Whether a slice's gradients are good; else it is computed again. Raises JobError if no scale is left."""
        overflow, self._overflow = self._overflow is not None and bool(self._overflow), None
        if not overflow:
            self._good += 1
            if self._good >= GROWTH_INTERVAL:
                self._good, self.value = 0, min(2 * self.value, MAX)
            return True
        self._good, self.value = 0, self.value / 2
        if self.value < MIN:
            self.value = MIN
            raise JobError(
                "the gradients are not finite in float16, however small the loss is scaled",
                hint="train with precision=bf16 or precision=fp32, or look for a division by zero in the loss",
            )
        return False

    def _unscale(self, gradient: Tensor) -> Tensor:
        if self._factor is None:
            return gradient
        bad = ~torch.isfinite(gradient).all()
        self._overflow = bad if self._overflow is None else self._overflow | bad
        return gradient * self._factor
