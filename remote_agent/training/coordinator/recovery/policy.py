"""What follows from a worker's failure: evidence and how the run stands in, a decision out. Pure.

Evidence is what was seen, never what it may mean: a process ended, nothing was heard for a while, a slice is late. The
policy decides; ``recovery.membership`` carries it out. Whatever is decided, the slices that the worker had not
delivered are issued again to others at once (a shard counts each slice once, so at worst some work was done twice): a
decision is about the worker.

A worker that was seen to end is started again, after a pause that doubles each time that this did not help, up to
:data:`LONGEST_PAUSE_S`: a device whose driver is broken must not be tried all the time, and one whose host is repaired
overnight is to take part in the morning. A worker that is silent or late may come back, and is not ended: its host may
be cut off for a while only. One that does not come back though its host's node lives hangs, and is started again.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_ATTEMPTS = 3
"""Times that the last worker is started again, without having worked well in between, until the run fails."""

STEADY_STEPS = 50
"""Steps that a worker has to make until its earlier failures are forgotten."""

FIRST_PAUSE_S = 0.0
NEXT_PAUSE_S = 2.0
"""Before the first attempt to start a worker again, and before the second; doubled for each further one."""

LONGEST_PAUSE_S = 300.0
"""A worker that can't be started is tried again at least so often."""


@dataclass(frozen=True)
class Died:
    """The worker's process ended."""

    cause: str


@dataclass(frozen=True)
class Silent:
    """Its process has not answered for ``seconds``; it ``hangs`` where that is too long, and its host's node lives."""

    seconds: float
    hangs: bool = False


@dataclass(frozen=True)
class Late:
    """Its process answers, and its slice is not done after ``seconds``, well beyond what was expected."""

    seconds: float


@dataclass(frozen=True)
class Hung:
    """As :class:`Late`, for so long that it will not end by itself."""

    seconds: float


@dataclass(frozen=True)
class ShardLinkDown:
    """Its process answers, and it can't exchange gradients and weights with a shard."""

    cause: str


@dataclass(frozen=True)
class TooLate:
    """It takes part from the step after ``step`` on, and all that take part in ``step`` were lost."""

    step: int


@dataclass(frozen=True)
class Drained:
    """The user wants its host to leave."""


Evidence = Died | Silent | Late | Hung | ShardLinkDown | TooLate | Drained


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """How the run stands when a worker fails.

    Attributes:
        others: workers that take part, without this one.
        coming: workers that may take part again, without this one: silent, late, or being started.
        attempts: times that this worker was started again, or failed otherwise, since it last worked well.
        on_server: the weights outlive the workers, and one that missed a step gets up to date by itself; else a new
            process takes its place, and has the weights from another worker.
    """

    others: int
    coming: int
    attempts: int = 0
    on_server: bool = True


@dataclass(frozen=True)
class SetAside:
    """It takes no part until it has caught up by itself; ``lost``: to the user it is gone until then."""

    cause: str
    lost: bool


@dataclass(frozen=True)
class Restart:
    """End its process if there is one, and start another on the same host, after a pause."""

    cause: str
    after_s: float


@dataclass(frozen=True)
class Drop:
    """Go on without it for good."""

    cause: str


@dataclass(frozen=True)
class Fail:
    """The run can't go on; ``weights_lost``: from a checkpoint it can."""

    cause: str
    weights_lost: bool = False


Decision = SetAside | Restart | Drop | Fail


def decide(evidence: Evidence, status: RunStatus) -> Decision:
    """What is done about the worker."""
    decision = _about(evidence, status)
    if isinstance(decision, Drop) and not status.others and not status.coming:
        return Fail(f"the last worker was lost: {decision.cause}")
    if not isinstance(decision, Fail) and not status.others and not status.on_server:
        return Fail(f"the last worker was lost, and the weights with it: {decision.cause}", weights_lost=True)
    return decision


def pause_s(attempts: int) -> float:
    """Seconds before a worker is started again that was so often before."""
    return FIRST_PAUSE_S if not attempts else min(LONGEST_PAUSE_S, NEXT_PAUSE_S * 2.0 ** min(attempts - 1, 30))


def _about(evidence: Evidence, status: RunStatus) -> Decision:
    match evidence:
        case Drained():
            return Drop("drained")
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
        case ShardLinkDown(cause) | Died(cause):
            return _again(cause, status)
        case TooLate(step):
            return _again(f"it waited for step {step}, and all workers of that step were lost", status)
        case Hung(seconds):
            return _again(f"its slice was not done after {seconds:.0f} s, though its process answers", status)


def _again(cause: str, status: RunStatus) -> Decision:
    if status.attempts >= MAX_ATTEMPTS and not status.others and not status.coming:
        return Drop(f"{cause} (after {status.attempts} attempts)")
    after_s = pause_s(status.attempts)
    return Restart(f"{cause} (tried again in {after_s:.0f} s)" if after_s else cause, after_s)
