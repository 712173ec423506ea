"""The exponential moving average of the weights, beside the optimizer that changes them.

After a step ``average = decay * average + (1 - decay) * weights``; it begins as the weights after the first step, as
``torch.optim.swa_utils.AveragedModel`` with ``get_ema_multi_avg_fn(decay)`` does. The rule treats each number by
itself, so every shard keeps that of its own chunks, and what is kept travels as one more thing that the optimizer
remembers about a parameter: into copies, checkpoints, and other layouts.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

EMA = "ema"
"""The average's name among what an optimizer remembers about a parameter."""


class WeightAverage:
    """Averages of some tensors; ``decay``: what of the average stays in a step; 0: none is kept."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._values: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def update(self, weights: Iterable[Tensor]) -> None:
        """A step was made, and the weights are these."""
        if not self._decay:
            return
        for each in weights:
            known = self._values.get(each)
            if known is None:
                self._values[each] = each.detach().clone()
            else:
                known.lerp_(each.detach(), 1 - self._decay)

    def of(self, weights: Tensor) -> dict[str, Tensor]:
        """A copy of the average of ``weights`` by its name; empty: there is none."""
        known = self._values.get(weights)
        return {} if known is None else {EMA: known.detach().cpu().clone()}

    def take(self, weights: Tensor, average: object) -> None:
        """Go on from the average of ``weights`` that was remembered; None: it begins."""
        if self._decay and isinstance(average, Tensor):
            self._values[weights] = average.to(weights.device, weights.dtype, copy=True).view(weights.shape)
