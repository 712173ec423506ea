"""Decisions about shares while a run goes on: track each device's speed, cut again when it pays, name who is slow.

Pure: values in, values out. A device is taken to become faster or slower as a whole, so one factor scales its fixed
cost and its speed alike: the median of measured over predicted time in its last steps. A median does not see a hiccup.
A change that lasts is seen when nearly all of the last steps lie on one side of the median, far from it: then what was
before is forgotten, and the factor is at the new level at once.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.training.speed.shares import DeviceProfile, split, step_seconds

HISTORY_STEPS = 40
"""Steps that the median is taken over."""

LASTING_STEPS = 8
"""Steps that a change must last, all but one of them: enough to follow a device within 10 steps."""

LASTING_S = 0.3
"""Seconds of computing that a change must last as well: where steps are short, a burst of another program is many."""

MOST_LASTING_STEPS = 60
"""The most steps that this can mean."""

LARGE_CHANGE = 0.3
"""A change of a device's speed by more than this is acted upon at once."""

LEAST_GAIN = 0.08
"""Another cut must make a step shorter by this part; below may be rounding and noise."""

STEPS_BETWEEN = 20
"""Steps from one cut to the next, unless a device's speed changed by :data:`LARGE_CHANGE`."""

FIRST_STEPS = 8
"""Steps until the first cut, which was made by measurements of each device alone, is looked at."""

SLOW_BELOW = 0.7
"""A device below this fraction of what it usually does is slow ..."""

BACK_ABOVE = 0.9
"""... until it is above this one again."""

SETTLE_STEPS = 10
"""Steps until a device's usual speed beside the others (contention included) is known."""

DRIFT = 0.05
"""How far the usual speed follows the present one in a step."""


@dataclass(frozen=True)
class SpeedTrack:
    """A device's measured profile and how it does now.

    Attributes:
        profile: as measured before training.
        ratios: measured over predicted time in its last steps, the newest last.
        seconds: what its last slice took.
        jumped: its speed was just seen to have changed by :data:`LARGE_CHANGE`.
        steps: how many were observed.
        usual: the factor that it settled at; None in the first steps.
        slow: its speed fell well below the usual one, and was not back since.
    """

    profile: DeviceProfile
    ratios: tuple[float, ...] = ()
    seconds: float = 0.0
    jumped: bool = False
    steps: int = 0
    usual: float | None = None
    slow: bool = False

    @property
    def factor(self) -> float:
        """Time now over time as measured: 2.0 means that it takes twice as long."""
        return statistics.median(self.ratios) if len(self.ratios) >= LASTING_STEPS // 2 else 1.0

    @property
    def current(self) -> DeviceProfile:
        """The profile that predicts the next step."""
        return DeviceProfile(
            self.profile.speed / self.factor, self.profile.overhead_s * self.factor, self.profile.max_batch
        )

    @property
    def speed(self) -> float:
        """Speed now over the usual speed."""
        return 1.0 if self.usual is None else self.usual / self.factor

    def observe(self, samples: int, seconds: float) -> SpeedTrack:
        """The track after a slice of ``samples`` took ``seconds``."""
        predicted = self.profile.seconds(samples)
        if samples <= 0 or seconds <= 0 or predicted <= 0:
            return self
        lasting = min(MOST_LASTING_STEPS, max(LASTING_STEPS, math.ceil(LASTING_S / seconds)))
        ratios = (*self.ratios, seconds / predicted)[-max(HISTORY_STEPS, 2 * lasting) :]
        before = dataclasses.replace(self, ratios=ratios[:-lasting]).factor
        jumped = _changed(ratios[-lasting:], before) if len(ratios) >= lasting else False
        after = dataclasses.replace(
            self,
            ratios=ratios[-lasting:] if jumped else ratios,
            seconds=seconds,
            jumped=jumped,
            steps=self.steps + 1,
        )
        return after._judged()  # noqa: SLF001 - its own class

    def _judged(self) -> SpeedTrack:
        """With ``usual`` and ``slow`` as they are after this step."""
        if self.steps < SETTLE_STEPS:
            return self
        if self.usual is None:
            return dataclasses.replace(self, usual=self.factor)
        if self.slow or self.speed < SLOW_BELOW:
            return dataclasses.replace(self, slow=self.speed <= BACK_ABOVE)
        return dataclasses.replace(self, usual=self.usual * self.speed**-DRIFT)

    def without_limit(self) -> SpeedTrack:
        """The track of a device that takes slices of any size, those above its memory's limit in parts."""
        return dataclasses.replace(self, profile=dataclasses.replace(self.profile, max_batch=None))

    def heeded(self) -> SpeedTrack:
        """The track once its jump was acted upon, or was found to need no action."""
        return dataclasses.replace(self, jumped=False)


def _changed(ratios: Sequence[float], before: float) -> bool:
    """Whether nearly all ``ratios`` are far above ``before``, or nearly all far below."""
    slower = sum(before / ratio < 1 - LARGE_CHANGE for ratio in ratios)
    faster = sum(ratio / before < 1 - LARGE_CHANGE for ratio in ratios)
    return max(slower, faster) >= len(ratios) - max(1, len(ratios) // LASTING_STEPS)


def recut(
    batch: int, shares: Sequence[int], tracks: Sequence[SpeedTrack], steps_since: int, least: int = 1
) -> tuple[int, ...] | None:
    """Better shares, or None when the present ones are good enough.

    Args:
        batch: samples of one step.
        shares: the present cut.
        tracks: one for each share.
        steps_since: steps since the last cut.
        least: samples of a slice that is not empty.
    """
    if steps_since < STEPS_BETWEEN and not any(track.jumped for track in tracks):
        return None
    profiles = [track.current for track in tracks]
    better = split(batch, profiles, least)
    if better == tuple(shares) or step_seconds(better, profiles) > (1 - LEAST_GAIN) * step_seconds(shares, profiles):
        return None
    return better
