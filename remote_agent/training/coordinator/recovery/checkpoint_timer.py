"""Decides when a checkpoint by time is due, if the user has not set ``checkpoint_every``.

Without checkpoints, a run is lost with its head, and with a lost head or stage the steps since the newest one are made
again. The first one is saved soon, the others every ``checkpoint_seconds``. The pause is longer if checkpoints would
cost too much: training waits while the state is kept, and writing uses and wears the head's disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from remote_agent.strategies import spec_of
from remote_agent.training.checkpoint.saver import Saver
from remote_agent.training.coordinator.recovery.copy_interval import MAX_STALLED, CopyInterval
from remote_agent.training.coordinator.session import Session, StepReport

FIRST_S = 5.0
"""Seconds of training until the first checkpoint."""

MAX_STALLED_SPLIT = 0.03
"""Part of the time that a pipeline may wait for checkpoints; other strategies: ``copy_interval.MAX_STALLED``."""

MAX_WRITING = 0.25
"""Part of the time in which a checkpoint may be written to the disk."""

MAX_BYTES_S = 4e6
"""Most bytes a second in the long run, which are 350 GB a day, to limit the wear of the disk."""


class CheckpointTimer:
    """Sets the step of a run's next checkpoint by time; ``session``: the run's, before its first step."""

    def __init__(self, session: Session, saver: Saver, clock: Callable[[], float] = time.monotonic) -> None:
        config = session.config
        self._is_on = config.checkpoint_every == 0 and config.checkpoint_seconds > 0
        self._usual_s = config.checkpoint_seconds
        self._max_stalled = MAX_STALLED_SPLIT if spec_of(config.strategy).split else MAX_STALLED
        self._every_s = min(FIRST_S, self._usual_s)
        self._saver, self._clock = saver, clock
        self._interval = CopyInterval()
        self._since = clock()

    @property
    def rest_s(self) -> float:
        """Seconds of training between two checkpoints."""
        newest = self._saver.newest
        written_s = max(newest.seconds / MAX_WRITING, newest.size / MAX_BYTES_S) if newest is not None else 0.0
        return max(self._every_s, self._interval.stall_s / self._max_stalled, written_s)

    def after(self, session: Session, report: StepReport, stall_s: float | None) -> None:
        """After a step, set the next checkpoint if it is time.

        Args:
            stall_s: seconds that training waited for this step's checkpoint; None: the step has none.
        """
        if not self._is_on:
            return
        barrier_s = self._interval.over(report.seconds)
        self._interval = self._interval.after_step(report.seconds)
        if stall_s is not None:
            self._interval = self._interval.after_copy(barrier_s + stall_s)
            self._since, self._every_s = self._clock(), self._usual_s
        elif (session.keeping.checkpoint_due or 0) <= report.step and self._is_time:
            session.keeping.checkpoint_due = session.soonest(report.step)

    @property
    def _is_time(self) -> bool:
        return not self._saver.is_writing and self._clock() - self._since >= self.rest_s
