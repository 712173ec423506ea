"""Figures of the user's own that ``loss`` returns beside the loss: ``return loss, {"reconstruction": value}``.

Each is a mean over the samples of its part of a step, or a pair (sum, weight); a step's figure is that of all its
samples. They stay on the device until they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from remote_agent.training.shared.figures import Figures, figures_of, merged


class Scalars:
    """Collects what a loss returns beside the loss; ``samples``: of the part that the loss is called for next."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any]) -> None:
        self._loss = loss
        self.samples = 0
        self._parts: list[tuple[Mapping[str, Any], int]] = []
        self._figures: Figures = {}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        """What the job's loss gives, without its figures."""
        given = self._loss(model, batch)
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
            values = {name: _detached(value) for name, value in given[1].items()}
            self._parts.append((values, self.samples))
            return given[0]
        return given

    def newest(self) -> Mapping[str, Any]:
        """What came beside the loss of the part that was computed last."""
        return self._parts[-1][0] if self._parts else {}

    def again(self) -> None:
        """The slice under way is computed from its beginning: what its parts gave is void."""
        self._parts = []

    def settle(self) -> None:
        """The slice under way is computed; raises JobError if a figure is no number."""
        parts, self._parts = self._parts, []
        if parts:
            self._figures = merged([self._figures, *(figures_of(values, n, "loss") for values, n in parts)])

    def take(self) -> Figures:
        """The figures of all slices since the last call."""
        taken, self._figures = self._figures, {}
        return taken


def _detached(value: object) -> object:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple | list):
        return tuple(_detached(each) for each in value)
    return value
