"""Decides for which call of the user's code a run has to end, since it killed workers or hangs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.whereabouts import Place

MAX_CRASHES = 2
"""Times that one call of the user's code may kill its worker, or hang in it."""

MAX_KILLS = 3
"""The same where workers were ended from outside, or by an unknown cause: that can be a coincidence."""


@dataclass(frozen=True, kw_only=True)
class Crash:
    """A worker died in a call of the user's code, or hangs in it.

    Attributes:
        host: where it was.
        place: the call.
        how: what happened, in words, with the function.
        certain: it was the call's own doing.
        detail: the user's calls, and what was written before.
    """

    worker: str
    host: str
    place: Place
    how: str
    certain: bool
    hung: bool = False
    detail: str = ""

    @property
    def call(self) -> tuple[int, int, str]:
        """The step, the slice and the function: any worker that does the slice again makes the same call."""
        return self.place.step, self.place.slice, self.place.function


def culprit(crashes: Sequence[Crash], workers: int) -> tuple[Crash, ...]:
    """The crashes of the one call that a run has to end for; empty: there is none yet.

    In a step only the same slice makes the same call again, and another worker is given it at once. Before the first
    step all workers make the same calls: where it is always the same one that dies, it may be its host's fault, and the
    run goes on without that.

    Args:
        crashes: in the order in which they were found.
        workers: that the run began with.
    """
    for call in dict.fromkeys(crash.call for crash in reversed(crashes)):
        same = tuple(crash for crash in crashes if crash.call == call)
        certain = any(crash.certain for crash in same) or one_sample(same) is not None
        distinct = len({crash.worker for crash in same})
        if len(same) >= (MAX_CRASHES if certain else MAX_KILLS) and (call[0] or distinct > 1 or workers == 1):
            return same
    return ()


def one_sample(crashes: Sequence[Crash]) -> int | None:
    """The sample that all of these were at, if the call was for one alone.

    Where a signal meets another thread, the one that the user's code is in may have come to the next.
    """
    known = {crash.place.sample if crash.place.samples == 1 else None for crash in crashes}
    return known.pop() if len(known) == 1 else None
