"""Checkpoints by time, where the user has not said after which steps: without any, a run is lost with its head.

The first one comes soon, the others every ``checkpoint_seconds``, or less often where they would cost too much:
training waits while weights and optimizer state are kept, and what is written keeps the head's disk busy and wears it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from remote_agent.training.config import STALE_STRATEGIES
from remote_agent.training.faults.pace import MOST_HELD_UP, Pace
from remote_agent.training.saving.saver import Saver
from remote_agent.training.session import Session, StepReport

FIRST_S = 5.0
"""Seconds of training until the first one: before, little is lost."""

MOST_WRITING = 0.25
"""Part of the time that the disk may be written to."""

MOST_BYTES_S = 4e6
"""Bytes a second that are written in the long run: 350 GB a day are enough for a disk."""


class Safeguard:
    """When the next checkpoint of a run is due by time.

    Args:
        session: the run's, before its first step.
        saver: writes them.
        clock: gives seconds.
    """

    def __init__(self, session: Session, saver: Saver, clock: Callable[[], float] = time.monotonic) -> None:
        config = session.config
        self._is_on = config.checkpoint_every == 0 and config.checkpoint_seconds > 0
        self._every_s = min(FIRST_S, config.checkpoint_seconds)
        self._saver, self._clock = saver, clock
        self._pace = Pace(bursts=config.strategy in STALE_STRATEGIES)
        self._since = clock()

    @property
    def rest_s(self) -> float:
        """Seconds of training from one to the next."""
        newest = self._saver.newest
        written_s = max(newest.seconds / MOST_WRITING, newest.size / MOST_BYTES_S) if newest is not None else 0.0
        return max(self._every_s, self._pace.held_up_s / MOST_HELD_UP, written_s)

    def after(self, session: Session, report: StepReport, held_up_s: float | None) -> None:
        """A step was made: say whether one of the next is to be kept.

        Args:
            session: the run's.
            report: of the step.
            held_up_s: seconds that training waited for the step to be kept; None: it was not.
        """
        if not self._is_on:
            return
        gathering_s = self._pace.over(report.seconds)
        self._pace = self._pace.after_step(report.seconds)
        if held_up_s is not None:
            self._pace = self._pace.after_copy(gathering_s + held_up_s)
            self._since, self._every_s = self._clock(), session.config.checkpoint_seconds
        elif session.checkpoint_due <= report.step and self._is_time:
            session.checkpoint_due = session.soonest(report.step)

    @property
    def _is_time(self) -> bool:
        return not self._saver.is_writing and self._clock() - self._since >= self.rest_s
