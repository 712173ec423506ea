"""Decisions about shares while a run goes on: track each device's speed, cut again when it pays, name who is slow.

Pure: values in, values out. A device is taken to become faster or slower as a whole, so one factor scales its fixed
cost and its speed alike; the factor is an exponentially weighted mean (in logarithms) of measured over predicted time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.training.shares import DeviceProfile, split, spread

WEIGHT = 0.3
"""Weight of the newest step in the moving mean: after 10 steps less than 3 % of the old value is left."""

LARGEST_JUMP = 4.0
"""One step counts as at most this many times slower or faster, so that one hiccup does not turn the shares over."""

CUT_AGAIN_ABOVE = 0.08
"""Predicted spread of the devices' times above which another cut is looked for."""

LEAST_GAIN = 0.03
"""The other cut must lower the spread by this much; what is left below may be rounding."""

LEAST_STEPS_BETWEEN = 3
"""Steps from one cut to the next."""

SLOW_BELOW = 0.7
"""A device below this fraction of what it did is reported as slow."""

SETTLE_STEPS = 10
"""Steps until a device's speed beside the others (contention included) is known."""


@dataclass(frozen=True)
class SpeedTrack:
    """A device's measured profile and how it does now.

    Attributes:
        profile: as measured before training.
        factor: time now over time as measured: 2.0 means that it takes twice as long.
        usual: the factor that it settled at; :func:`slowdown` compares with it.
        steps: steps observed.
    """

    profile: DeviceProfile
    factor: float = 1.0
    usual: float | None = None
    steps: int = 0

    @property
    def current(self) -> DeviceProfile:
        """The profile that predicts the next step."""
        return DeviceProfile(
            self.profile.speed / self.factor, self.profile.overhead_s * self.factor, self.profile.max_batch
        )

    def observe(self, samples: int, seconds: float) -> SpeedTrack:
        """The track after a slice of ``samples`` took ``seconds``."""
        predicted = self.current.seconds(samples)
        if samples <= 0 or seconds <= 0 or predicted <= 0:
            return self
        jump = min(LARGEST_JUMP, max(1 / LARGEST_JUMP, seconds / predicted))
        factor = self.factor * math.exp(WEIGHT * math.log(jump))
        steps = self.steps + 1
        usual = self.usual
        if steps >= SETTLE_STEPS:
            usual = factor if usual is None else min(usual, factor)
        return dataclasses.replace(self, factor=factor, usual=usual, steps=steps)

    def slowdown(self) -> float | None:
        """Speed now over speed before when the device fell well below what it did, else None."""
        if self.usual is None or self.usual / self.factor >= SLOW_BELOW:
            return None
        return self.usual / self.factor

    def without_limit(self) -> SpeedTrack:
        """The track of a device that takes slices of any size, those above its memory's limit in parts."""
        return dataclasses.replace(self, profile=dataclasses.replace(self.profile, max_batch=None))

    def accepted(self) -> SpeedTrack:
        """The track once its slowness was reported: the speed now is the one to compare with."""
        return dataclasses.replace(self, usual=self.factor)


def recut(batch: int, shares: Sequence[int], tracks: Sequence[SpeedTrack], steps_since: int) -> tuple[int, ...] | None:
    """Better shares, or None when the present ones are good enough (hysteresis).

    Args:
        batch: samples of one step.
        shares: the present cut.
        tracks: one for each share.
        steps_since: steps since the last cut.
    """
    if steps_since < LEAST_STEPS_BETWEEN:
        return None
    profiles = [track.current for track in tracks]
    before = spread(shares, profiles)
    if before <= CUT_AGAIN_ABOVE:
        return None
    better = split(batch, profiles)
    if better == tuple(shares) or spread(better, profiles) > before - LEAST_GAIN:
        return None
    return better
