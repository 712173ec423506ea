"""While a run is on: is the loss of a slice still what its halves' losses say it is?

The measurement (:mod:`.additivity`) sees some samples, and the first weights. Where padding is rare, or a term of the
loss begins later, it sees nothing; the weights would be wrong without a word. So now and then a worker computes the
loss of a slice once more, without backward: whole, and in two halves. What it finds ends the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from remote_agent.training.errors import JobError
from remote_agent.training.shared.findings import LATER_HINT
from remote_agent.training.shared.messages import Slice
from remote_agent.training.shared.slices import Indices
from remote_agent.training.user_code.losses import PartLoss, mean_of
from remote_agent.training.worker.device.untouched import untouched


class Computes(Protocol):
    """What computes slices; see :class:`~remote_agent.training.worker.device.compute.SliceComputer`."""

    most: int | None
    summed: bool
    changing: Sequence[str]
    seed: int

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def probe(self, indices: Indices, seed: int, begin: int) -> PartLoss:
        """The loss of these samples together."""


FIRST, EVERY = 8, 50
"""Slices of a worker that are all looked at; from then on those whose number is a power of two, and each of so many.
One takes two thirds of what computing the slice takes: in the long run a hundredth of the time."""


def is_due(number: int) -> bool:
    """Whether a worker's slice number ``number``, from 1, is looked at."""
    return number <= FIRST or number & (number - 1) == 0 or number % EVERY == 0


class LossWatch:
    """Looks at the slices of one worker.

    Args:
        model: what they are computed with.
        evaluating: the loss is random in training mode: it is compared in evaluation mode.
        tolerance: the most that it may differ, as a part of what it is or was in the measurement, if that was more.
        scale: what it was in the measurement.
    """

    def __init__(self, model: nn.Module, *, evaluating: bool, tolerance: float, scale: float) -> None:
        self._model, self._evaluating = model, evaluating
        self._tolerance, self._scale = tolerance, scale
        self._slices = 0
        self._ended = False

    def look(self, computer: Computes, at: str, own: Slice) -> None:
        """Look at a slice, which is called ``at`` in messages, if it is its turn.

        Raises:
            JobError: its loss is not the mean (or, of a loss that adds up, the sum) of its halves' losses.
        """
        self._slices += 1
        count = min(len(own.indices), computer.most or len(own.indices))
        if self._ended or count < 2 or not is_due(self._slices):
            return
        try:
            whole, parts = self._compared(computer, own, count)
            if abs(whole - parts) <= self._tolerance * max(abs(whole), abs(parts), self._scale) + 1e-7:
                return
            again, _ = self._compared(computer, own, count)
        except Exception:  # noqa: BLE001 - the slice itself was computed, and what it fails of tells nothing about it
            self._ended = True
            return
        if again != whole:  # it is random after all
            self._ended = True
            return
        named = f"{count} samples ({', '.join(map(str, own.indices[:3].tolist()))} ...)"
        kind = "sum" if computer.summed else "mean"
        raise JobError(
            f"{at}: the loss of {named} is {whole:.6g}, and the {kind} of its halves' losses {parts:.6g}: it"
            " depends on which samples are together, or it is a mean over something else than samples (padding without"
            " a mask? a mean over what counts?)",
            hint=LATER_HINT,
        )

    def _compared(self, computer: Computes, own: Slice, count: int) -> tuple[float, float]:
        """The loss of the first ``count`` samples of a slice, and the mean (or sum) of their halves' losses."""
        middle, found = count // 2, []
        for begin, end in ((0, count), (0, middle), (middle, count)):
            with untouched(self._model, computer.device, computer.changing):
                if self._evaluating:
                    self._model.eval()
                part = computer.probe(own.indices[begin:end], computer.seed, own.begin + begin)
                found.append((float(part.value.detach()) * part.factor, part.weight, end - begin))
        if computer.summed:
            sums = [total / samples for total, _, samples in found]
            return sums[0], sums[1] + sums[2]
        whole, *halves = ((total, weight) for total, weight, _ in found)
        return mean_of([whole]), mean_of(halves)
