"""Compares what the optimizer's step made of the weights on each worker: of the same gradients it has to make the same.

A step that depends on something else which each worker has of its own (activations that a hook keeps, what loss left in
an attribute, a generator of its own, the clock) would train a different model on each of them. The sum of the gradients
also carries some projections of what the last step changed, and their squares: these give the spread over the workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.audit import is_due
from remote_agent.training.shared.flat import HALVES

PROJECTIONS = 8
NUMBERS = 1 + 2 * PROJECTIONS
"""That are summed: how many workers made the step, its projections, and their squares."""

SOME = 100
"""Numbers of each parameter that are looked at."""

OF_STEP = 0.03
"""The most that steps may differ, as a part of the step: devices of different kinds round it differently."""

OF_WEIGHTS, OF_HALVES = 1e-6, 5e-3
"""The same as a part of the weights; and of those in half precision."""


class SameSteps:
    """Of one worker.

    Args:
        parameters: that are trained.

    Attributes:
        numbers: to be summed over the workers, :data:`NUMBERS`; zeros: this worker did not look at its last step.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._before: Tensor | None = None
        self._limit = 0.0
        self.numbers = torch.zeros(NUMBERS, dtype=torch.float64)
        self._signs = torch.zeros(0)

    def begin(self, step: int) -> None:
        """Before the optimizer's step."""
        self._before = self._some() if is_due(step) else None
        self.numbers = torch.zeros(NUMBERS, dtype=torch.float64)

    def end(self) -> None:
        """After it."""
        if self._before is None:
            return
        now = self._some()
        if not len(self._signs):
            generator = torch.Generator().manual_seed(0)
            self._signs = 2.0 * torch.randint(2, (PROJECTIONS, len(now)), generator=generator).double() - 1
        change = now - self._before
        seen = self._signs @ change
        self.numbers = torch.cat([torch.ones(1, dtype=torch.float64), seen, seen.square()])
        half = any(each.dtype in HALVES for each in self._parameters)
        self._limit = OF_STEP * float(change.norm()) + (OF_HALVES if half else OF_WEIGHTS) * float(now.norm())

    def check(self, sums: Tensor, step: int) -> None:
        """Look at the ``sums`` over the workers; ``step`` is the one that they are about.

        Raises:
            JobError: the workers made different steps.
        """
        count, limit = float(sums[0]), self._limit
        if count < 2 or not self.numbers[0]:
            return
        mean, squares = sums[1 : 1 + PROJECTIONS] / count, sums[1 + PROJECTIONS :] / count
        spread = float((squares - mean.square()).clamp(min=0).mean().sqrt())
        if spread > limit:
            raise JobError(
                f"step {step:,}: the optimizer's step made other weights on each worker, of the same gradients: it"
                " depends on something that each worker has of its own (activations that a hook keeps? what loss left"
                " in an attribute? a generator of its own? the clock? on unlike devices, such as a GPU and a CPU,"
                " random numbers or the signs of singular vectors?)",
                hint="let the step depend on gradients, weights and the optimizer's own state alone, and draw from"
                " torch's global generator, which is seeded for each step, on the CPU (`torch.randn(p.shape).to(p)`):"
                " devices of other kinds draw other numbers of the same seed; what it needs from the batch belongs into"
                " a buffer of the model, which is the same on all workers",
            )

    @torch.no_grad()
    def _some(self) -> Tensor:
        found = [flat.some(each.detach(), SOME) for each in self._parameters]
        reals = [torch.view_as_real(each).flatten() if each.is_complex() else each for each in found]
        return torch.cat([each.cpu().double() for each in reals])
