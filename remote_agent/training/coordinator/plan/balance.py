"""Decisions about shares while a run goes on: track each device's speed, cut again when it pays, report slow devices.

Pure: values in, values out. A device is taken to become faster or slower as a whole, so one factor scales its fixed
cost and its speed alike: the median of measured over predicted time in its last steps. A median does not see a hiccup.

The speed has changed once nearly all of :data:`LASTING_STEPS` steps are far from the level before. What was before is
then forgotten, and the factor is at the new level at once.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.shares import split, step_seconds

HISTORY_STEPS = 40
"""Steps that the median is taken over."""

KNOWN_STEPS = 3
"""Steps for which the measurement before training counts."""

LASTING_STEPS = 8
"""Steps of which all but one must be far off, to be a change: enough to follow it within 10 steps."""

LASTING_S = 0.3
"""Seconds of computing that a change must last as well: where steps are short, a burst of another program is many."""

MAX_LASTING_STEPS = 60
"""The most steps that this can mean."""

LARGE_CHANGE = 0.3
"""A change of a device's speed by more than this is acted upon once it has lasted."""

MIN_GAIN = 0.08
"""Another cut must make a step shorter by this part; below may be rounding and noise."""

MIN_GAIN_BY_CHANGE = 0.02
"""The same where a device's speed has just changed: a weak device that is back adds little, and that little lasts."""

STEPS_BETWEEN = 20
"""Steps from one cut to the next, unless a device's speed changed by :data:`LARGE_CHANGE`."""

FIRST_STEPS = 8
"""Steps until the first cut, which was made by measurements of each device alone, is looked at."""

SLOW_BELOW = 0.7
"""A device below this fraction of what it usually does is slow ..."""

BACK_ABOVE = 0.9
"""... until it is above this one again."""

NAMED_S = 2.0
"""Seconds of the run by which a device must have been slow for longer than not, until that is told; the same for back.
A busy computer slows a device down for less than that, many times a minute, and nothing can be done about it."""

SHORT_STEP_S = 0.05
"""Where a step at the usual speed takes at least this, it is told at once: such steps are few, and each counts."""

SETTLE_STEPS = 10
"""Steps until a device's usual speed beside the others (contention included) is known."""

DRIFT = 0.05
"""How far the usual speed follows the present one in a step."""


@dataclass(frozen=True)
class SpeedTrack:
    """A device's measured profile and how it does now.

    Attributes:
        profile: as measured before training.
        ratios: measured over predicted time in its last steps, the newest last; at first the profile counts as some.
        seconds: what its last slice took.
        jumped: its speed was just seen to have changed by :data:`LARGE_CHANGE`, or was seen after a rest.
        usual: the factor that it settled at; None in the first steps.
        slow: its speed fell well below the usual one, and was not back since.
        named: it was told that it is slow, and not yet that it is back.
        differs_s: seconds in which ``named`` was not true any more, less those in which it was again.
    """

    profile: DeviceProfile
    ratios: tuple[float, ...] = (1.0,) * KNOWN_STEPS
    seconds: float = 0.0
    jumped: bool = False
    steps: int = 0
    usual: float | None = None
    slow: bool = False
    named: bool = False
    differs_s: float = 0.0

    @cached_property
    def factor(self) -> float:
        """Time now over time as measured: 2.0 means that it takes twice as long."""
        return statistics.median(self.ratios)

    @cached_property
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
        ratio = seconds / predicted
        ratios = (*self.ratios, ratio)
        pace = predicted * statistics.median(ratios[-KNOWN_STEPS:])
        lasting = max(LASTING_STEPS, min(MAX_LASTING_STEPS, math.ceil(LASTING_S / pace)))
        ratios = ratios[-max(HISTORY_STEPS, 2 * lasting) :]
        jumped = _changed(ratios, lasting)
        after = dataclasses.replace(
            self,
            ratios=ratios[-lasting:] if jumped else ratios,
            seconds=seconds,
            jumped=jumped,
            steps=self.steps + 1,
        )
        return after._judged()  # noqa: SLF001 - its own class

    def anew(self, samples: int, seconds: float) -> SpeedTrack:
        """The track after the first slice since a rest: how fast the device was before does not count any more."""
        predicted = self.profile.seconds(samples)
        if samples <= 0 or seconds <= 0 or predicted <= 0:
            return self
        ratios = (seconds / predicted,) * KNOWN_STEPS
        after = dataclasses.replace(self, ratios=ratios, seconds=seconds, jumped=True, steps=self.steps + 1)
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

    def told(self, passed_s: float) -> SpeedTrack:
        """With ``named`` as it is after a step of the run that took ``passed_s``; the device may have had no slice."""
        if self.slow is self.named:
            return dataclasses.replace(self, differs_s=max(0.0, self.differs_s - passed_s))
        differs_s = self.differs_s + passed_s
        if max(self.seconds, passed_s) * self.speed >= SHORT_STEP_S or differs_s >= NAMED_S:
            return dataclasses.replace(self, named=self.slow, differs_s=0.0)
        return dataclasses.replace(self, differs_s=differs_s)

    def without_limit(self) -> SpeedTrack:
        """The track of a device that takes slices of any size, those above its memory's limit in parts."""
        return dataclasses.replace(self, profile=dataclasses.replace(self.profile, max_batch=None))

    def noticed(self) -> SpeedTrack:
        """The track once its jump was considered, whether it led to another cut or not."""
        return dataclasses.replace(self, jumped=False)


def _changed(ratios: Sequence[float], lasting: int) -> bool:
    """Whether the last ``lasting`` steps are of another level than those before."""
    if len(ratios) < lasting + KNOWN_STEPS:
        return False
    far, level = -math.log(1 - LARGE_CHANGE), statistics.median(ratios[:-lasting])
    run = [math.log(ratio / level) for ratio in ratios[-lasting:]]
    shift = statistics.median(run)
    return sum(abs(x) > far and x * shift > 0 for x in run) >= lasting - lasting // LASTING_STEPS


def recut(
    batch: int, shares: Sequence[int], tracks: Sequence[SpeedTrack], steps_since: int, least: int = 1
) -> tuple[int, ...] | None:
    """Better shares, or None when the present ones are good enough; ``least``: samples of a slice that is not empty."""
    if steps_since < STEPS_BETWEEN and not any(track.jumped for track in tracks):
        return None
    profiles = [track.current for track in tracks]
    better = split(batch, profiles, least)
    most = (1 - least_gain(tracks)) * step_seconds(shares, profiles)
    return better if step_seconds(better, profiles) <= most else None


def least_gain(tracks: Iterable[SpeedTrack]) -> float:
    """The part by which another cut must make a step shorter."""
    return MIN_GAIN_BY_CHANGE if any(track.jumped for track in tracks) else MIN_GAIN
