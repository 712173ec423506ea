"""Decides how often the shards' state is copied (``backups``), from the times of steps and copies. Pure."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from remote_agent.planning.served_step import copied_every

MAX_STALLED = 0.01
"""Part of the time that training may wait for copies."""

COUNTED_STALLS = 3
"""Number of last copies of which the shortest waiting time counts."""

MAX_SENDING = 0.25
"""Part of the time in which copies may be in transfer, since they share the links with training."""

MIN_STEP_S = 1e-6


@dataclass(frozen=True, kw_only=True)
class CopyInterval:
    """The measured times of a run's steps and copies, in seconds; 0: unknown.

    Attributes:
        stalls: time that training waited for each of the last copies, the newest last.
        sending_s: time of the newest copy's transfer.
    """

    step_s: float = 0.0
    stalls: tuple[float, ...] = ()
    sending_s: float = 0.0

    @property
    def stall_s(self) -> float:
        """Expected time that training waits for a copy.

        A single measurement may be disturbed and must not delay the next copy.
        """
        return min(self.stalls) if len(self.stalls) > 1 else 0.0

    @property
    def steps(self) -> int:
        """Steps between two copies, at least 1.

        The steps since a copy can be repeated within ``planning.served_step.REPLAY_S``, unless the copies would then
        take too much of the time or of the link.
        """
        step_s = max(self.step_s, MIN_STEP_S)
        wanted = copied_every(step_s)
        affordable = math.ceil(max(self.stall_s / MAX_STALLED, self.sending_s / MAX_SENDING) / step_s)
        return max(wanted, affordable)

    def over(self, seconds: float) -> float:
        """Seconds by which a step took longer than usual; 0 if the usual time is unknown."""
        return max(0.0, seconds - self.step_s) if self.step_s else 0.0

    def after_step(self, seconds: float) -> CopyInterval:
        """Add the time of one more step.

        A long step (a fault, a repair) must not shorten the interval between copies, which counts steps.
        """
        step_s = min(seconds, 0.7 * self.step_s + 0.3 * seconds) if self.step_s else seconds
        return dataclasses.replace(self, step_s=step_s)

    def after_copy(self, stall_s: float) -> CopyInterval:
        """Add the waiting time of one more copy."""
        return dataclasses.replace(self, stalls=(*self.stalls, stall_s)[-COUNTED_STALLS:])
