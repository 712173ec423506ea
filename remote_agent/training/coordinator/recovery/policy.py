"""Decides what to do about a failed worker, from the evidence and the state of the run. Pure.

Evidence is an observation, not an interpretation: a process ended, a worker was silent for a while, a slice is late.
This module decides; ``recovery.membership`` carries the decision out. A decision is about the worker only. Its
undelivered slices are reissued to others at once in any case (a shard counts each slice once, so at worst some work is
done twice).

A worker whose process ended is restarted. If this does not help, the pause before the next attempt doubles, up to
:data:`LONGEST_PAUSE_S`: a device with a broken driver must not be tried all the time, and a host that is repaired
overnight should take part in the morning. A worker that is silent or late is not ended, since its host may be cut off
only for a while. If it does not come back though its host's node is alive, it hangs, and is restarted.
"""

from __future__ import annotations

from dataclasses import dataclass

from remote_agent.protocol import DRAINED

MAX_ATTEMPTS = 3
"""How often the last worker is restarted, without having worked well in between, until the run fails."""

STEADY_STEPS = 50
"""Steps after which a worker's earlier failures are forgotten."""

FIRST_PAUSE_S = 0.0
NEXT_PAUSE_S = 2.0
"""Pauses before the first and the second attempt to restart a worker; doubled for each further attempt."""

LONGEST_PAUSE_S = 300.0
"""The longest pause between two attempts."""


@dataclass(frozen=True)
class Died:
    """The worker's process ended."""

    cause: str


@dataclass(frozen=True)
class Silent:
    """Its process has not answered for ``seconds``; it ``hangs`` if that is too long and its host's node is alive."""

    seconds: float
    hangs: bool = False


@dataclass(frozen=True)
class Late:
    """Its process answers, but its slice is not done after ``seconds``, much longer than expected."""

    seconds: float


@dataclass(frozen=True)
class Hung:
    """As :class:`Late`, but for so long that it is not expected to finish."""

    seconds: float


@dataclass(frozen=True)
class ShardLinkDown:
    """Its process answers, but can't exchange gradients and weights with a shard."""

    cause: str


@dataclass(frozen=True)
class Apart:
    """Its process answers, but its host and another one do not reach each other."""

    cause: str


@dataclass(frozen=True)
class TooLate:
    """It takes part from the step after ``step`` on, but all workers of ``step`` were lost."""

    step: int


@dataclass(frozen=True)
class Drained:
    """The user drained its host."""


Evidence = Died | Silent | Late | Hung | ShardLinkDown | Apart | TooLate | Drained


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The state of the run when a worker fails.

    Attributes:
        others: number of workers that take part, without this one.
        coming: number of workers that may return (silent, late, or starting), without this one.
        attempts: number of restarts and other failures of this worker since it last worked well.
        on_server: servers hold the weights, so a worker that missed a step catches up by itself. Otherwise it is
            replaced by a new process, which gets the weights from another worker.
    """

    others: int
    coming: int
    attempts: int = 0
    on_server: bool = True


@dataclass(frozen=True)
class SetAside:
    """It does not take part until it has caught up by itself; ``lost``: the user sees it as lost until then."""

    cause: str
    lost: bool

    def __str__(self) -> str:
        return f"{self.cause}; it takes no part until it has caught up"


@dataclass(frozen=True)
class Restart:
    """End its process, if there is one, and start a new one on the same host after a pause."""

    cause: str
    after_s: float

    def __str__(self) -> str:
        return f"{self.cause}; its process is started again{f' in {self.after_s:g} s' if self.after_s else ''}"


@dataclass(frozen=True)
class Drop:
    """Remove it from the run for good."""

    cause: str

    def __str__(self) -> str:
        return f"{self.cause}; it leaves the run"


@dataclass(frozen=True)
class Fail:
    """End the run; ``weights_lost``: it can continue from a checkpoint."""

    cause: str
    weights_lost: bool = False

    def __str__(self) -> str:
        return f"{self.cause}; the run can't go on"


Decision = SetAside | Restart | Drop | Fail


def decide(evidence: Evidence, status: RunStatus) -> Decision:
    """Decide what to do about the worker."""
    decision = _about(evidence, status)
    if isinstance(decision, Drop) and not status.others and not status.coming:
        return Fail(f"the last worker was lost: {decision.cause}")
    if not isinstance(decision, Fail) and not status.others and not status.on_server:
        return Fail(f"the last worker was lost, and the weights with it: {decision.cause}", weights_lost=True)
    return decision


def pause_s(attempts: int) -> float:
    """Seconds before the next restart of a worker after this number of attempts."""
    return FIRST_PAUSE_S if not attempts else min(LONGEST_PAUSE_S, NEXT_PAUSE_S * 2.0 ** min(attempts - 1, 30))


def _about(evidence: Evidence, status: RunStatus) -> Decision:
    match evidence:
        case Drained():
            return Drop(DRAINED)
        case Silent(seconds, hangs=True):
            return _again(f"its process has not answered for {seconds:.0f} s, though its host is there", status)
        case Silent(seconds):
            cause = f"no answer for {seconds:.1f} s"
            return SetAside(cause, lost=True) if status.on_server else _again(cause, status)
        case Late():
            cause = "its slice is late"
            return SetAside(cause, lost=False) if status.on_server else _again(cause, status)
        case ShardLinkDown(cause) if not status.attempts and status.on_server:
            return SetAside(cause, lost=True)
        case ShardLinkDown(cause) | Apart(cause) | Died(cause):
            return _again(cause, status)
        case TooLate(step):
            return _again(f"it waited for step {step}, and all workers of that step were lost", status)
        case Hung(seconds):
            return _again(f"its slice was not done after {seconds:.0f} s, though its process answers", status)


def _again(cause: str, status: RunStatus) -> Decision:
    if status.attempts >= MAX_ATTEMPTS and not status.others and not status.coming:
        return Drop(f"{cause} (after {status.attempts} attempts)")
    return Restart(cause, pause_s(status.attempts))
