"""Simulated devices: on one computer, real computation stretched by a sleep to the pace of a slower machine.

For the demo and the lab, where all "machines" share a few cores. A simulated device computes its slice really, then
sleeps until ``target(b) = HEADROOM * (o + b c) / s``: ``o`` and ``c`` (seconds per sample) are one measurement of this
computer that all simulated devices share, ``s`` is the device's speed as a fraction. The headroom is what lets several
of them compute at once on the same cores: contention disappears in the sleep, so that speeds are really 1 : 0.5 : 0.25.
Every figure of a simulated device carries its label (``Share.simulated_speed``).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.protocol import SIMULATED_SPEED

HEADROOM = 4.0
"""A simulated device of speed 1 takes this many times the computer's own time."""


@dataclass(frozen=True)
class SimulatedDevice:
    """A device that keeps the pace of ``speed`` times the reference computer, slowed by :data:`HEADROOM`."""

    speed: float
    reference: DeviceProfile

    @property
    def profile(self) -> DeviceProfile:
        """What the planner sees: exact by construction, so a simulated device needs no measurement of its own."""
        stretch = HEADROOM / self.speed
        return DeviceProfile(
            self.reference.speed / stretch, self.reference.overhead_s * stretch, self.reference.max_batch
        )

    def sleep_until_target(self, samples: int, started: float, part: float = 1.0) -> None:
        """Sleep until the ``part`` of ``samples``' target time has passed since ``started`` (by ``perf_counter``)."""
        left = started + part * self.profile.seconds(samples) - time.perf_counter()
        if left > 0:
            time.sleep(left)


def simulated_speed() -> float | None:
    """This process's simulated speed from its environment; None on a real machine.

    Raises:
        ValueError: the variable is set but is not a number in (0, 1].
    """
    text = os.environ.get(SIMULATED_SPEED)
    if not text:
        return None
    speed = float(text)
    if not 0 < speed <= 1:
        raise ValueError(f"{SIMULATED_SPEED}={text}: expected a number above 0 and up to 1")
    return speed
