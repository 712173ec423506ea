"""Devices that get no share, as the others end sooner without them: when they are tried again. Pure.

A device without a slice shows no speed. It may have been slow for a while, with a game or a backup on it, and be as
fast as ever now, or was just measured at a bad moment. So it gets one of the smallest slices from time to time: the
first time soon, and half as often after each time that was in vain, so that a device that is really slow costs little.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

TRIAL_COST = 0.05
"""Part of the time that the steps of the first trial may cost; each one in vain halves it, down to 0.1 %."""

TRIAL_STEPS = 2
"""Steps that have the slice: the next one is issued before the first has been seen."""

MIN_REST_S = 10.0
"""Seconds of steps before the first trial: each of them is told to the user."""

MAX_DOUBLINGS = 6
"""After so many trials in vain their distance stays as it is."""


@dataclass(frozen=True)
class Benched:
    """A device without a share: steps since it lost it or was tried last, and how many trials were in vain."""

    steps: int = 0
    trials: int = 0

    def after_step(self) -> Benched:
        """With one more step without it."""
        return dataclasses.replace(self, steps=self.steps + 1)

    def after_trial(self) -> Benched:
        """It was tried, and gets no share."""
        return Benched(trials=self.trials + 1)

    def is_over(self, step_s: float, trial_s: float) -> bool:
        """Whether it is to be tried.

        Args:
            step_s: predicted seconds of a step without it.
            trial_s: predicted seconds of its slice, by what is known of it.
        """
        if step_s <= 0:
            return False
        cost = TRIAL_STEPS * max(0.0, trial_s - step_s)
        least = math.ceil(max(MIN_REST_S, cost / TRIAL_COST) / step_s)
        return self.steps >= least << min(self.trials, MAX_DOUBLINGS)


def trial_cut(shares: Sequence[int], device: int, least: int) -> tuple[int, ...] | None:
    """The same samples with ``least`` of them for ``device``, from the largest share; None: that would be too small.

    Args:
        device: index of one that has none.
        least: samples of a slice that is not empty.
    """
    largest = max(range(len(shares)), key=lambda index: shares[index])
    if shares[largest] < 2 * least:
        return None
    cut = list(shares)
    cut[largest], cut[device] = cut[largest] - least, least
    return tuple(cut)
