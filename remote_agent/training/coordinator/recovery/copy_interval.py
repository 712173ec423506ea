"""How often the shards' state is copied (``backups``): what steps and copies take, and what follows from it. Pure."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from remote_agent.planning.simulator import copied_every

MAX_STALLED = 0.01
"""Part of the time that training may wait for copies."""

COUNTED_STALLS = 3
"""Of the last so many copies, how long training waited for each; the shortest counts."""

MAX_SENDING = 0.25
"""Part of the time that copies may be on their way: they share the links with training."""

MIN_STEP_S = 1e-6


@dataclass(frozen=True, kw_only=True)
class CopyInterval:
    """What is known of a run's steps and copies, in seconds; 0: nothing yet.

    Attributes:
        bursts: slices of several workers come at once and end as many steps, so some steps take nothing and others all
            of the time. All workers have to come together for a copy, then.
        step_s: a step takes so long.
        stalls: so long training waited for each of the last copies, the newest last.
        sending_s: so long the newest copy was on its way.
    """

    bursts: bool
    step_s: float = 0.0
    stalls: tuple[float, ...] = ()
    sending_s: float = 0.0

    @property
    def stall_s(self) -> float:
        """How long training waits for a copy.

        A single one may have met with something else: it must not put off the next. Before there are two it is what is
        expected: to come together may take the others as long as a slice takes.
        """
        if len(self.stalls) > 1:
            return min(self.stalls)
        return self.step_s if self.bursts else 0.0

    @property
    def steps(self) -> int:
        """Steps from one copy to the next, at least 1.

        So many that the steps since can be made again within ``planning.simulator.REPLAY_S``, unless the copies would
        then cost too much of the time or of the link.
        """
        step_s = max(self.step_s, MIN_STEP_S)
        wanted = copied_every(step_s)
        affordable = math.ceil(max(self.stall_s / MAX_STALLED, self.sending_s / MAX_SENDING) / step_s)
        return max(wanted, affordable)

    def over(self, seconds: float) -> float:
        """How much longer a step of so many seconds took than one takes; 0 as long as nothing is known of that."""
        return max(0.0, seconds - self.step_s) if self.step_s else 0.0

    def after_step(self, seconds: float) -> CopyInterval:
        """With one more step that took so long.

        A long step (a fault, a repair) must not make the interval between copies short, which is in steps. Where steps
        end in bursts only the mean says anything.
        """
        if not self.step_s:
            step_s = seconds
        elif self.bursts:
            step_s = 0.95 * self.step_s + 0.05 * seconds
        else:
            step_s = min(seconds, 0.7 * self.step_s + 0.3 * seconds)
        return dataclasses.replace(self, step_s=step_s)

    def after_copy(self, stall_s: float) -> CopyInterval:
        """With one more copy for which training waited so long."""
        return dataclasses.replace(self, stalls=(*self.stalls, stall_s)[-COUNTED_STALLS:])
