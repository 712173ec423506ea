"""Decides for which call of the user's code a run has to end, since it killed workers or hangs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.current_call import Place

MAX_CRASHES = 2
"""How often one call of the user's code may kill its worker, or hang, until the run ends."""

MAX_KILLS = 3
"""The same for workers that were ended from outside, or by an unknown cause, which may be a coincidence."""


@dataclass(frozen=True, kw_only=True)
class Crash:
    """A worker died in a call of the user's code, or hangs in it.

    Attributes:
        how: what happened, in words, with the function.
        certain: the call itself caused it.
        detail: the user's calls, and the last output before.
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
        """The step, the slice and the function; any worker that computes the slice makes the same call."""
        return self.place.step, self.place.slice, self.place.function


def culprit(crashes: Sequence[Crash], workers: int) -> tuple[Crash, ...]:
    """The crashes of the call for which the run has to end; empty: there is none yet.

    In a step, only the same slice makes the same call, and another worker gets it at once. Before the first step, all
    workers make the same calls: if always the same one dies, its host may be the cause, and the run continues without
    it.

    Args:
        crashes: in the order in which they were found.
        workers: number of workers at the run's start.
    """
    for call in dict.fromkeys(crash.call for crash in reversed(crashes)):
        same = tuple(crash for crash in crashes if crash.call == call)
        certain = any(crash.certain for crash in same) or one_sample(same) is not None
        distinct = len({crash.worker for crash in same})
        if len(same) >= (MAX_CRASHES if certain else MAX_KILLS) and (call[0] or distinct > 1 or workers == 1):
            return same
    return ()


def one_sample(crashes: Sequence[Crash]) -> int | None:
    """The sample of all these crashes, if the call was for a single sample.

    If a signal arrives in another thread, the thread with the user's code may already be at the next sample.
    """
    known = {crash.place.sample if crash.place.samples == 1 else None for crash in crashes}
    return known.pop() if len(known) == 1 else None
