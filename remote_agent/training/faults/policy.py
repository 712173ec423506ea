"""What follows from a worker's failure: evidence and how the run stands in, a decision out. Pure.

Evidence is what was seen, never what it may mean: a process ended, nothing was heard for a while, a slice is late. The
policy decides; ``strategies.roster`` carries it out. Whatever is decided, the slices that the worker had not delivered
are issued again to others at once (a shard counts each slice once, so at worst some work was done twice): a decision is
about the worker.

Someone who was seen to end is started again, after a pause that doubles, and is given up when that did not help: a
device whose driver is broken must not be tried forever. Someone who is silent or late may come back, and is not ended:
its host may be cut off for a while only.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_ATTEMPTS = 3
"""Times that a worker is started again, without having worked well in between, until it is given up."""

STEADY_STEPS = 50
"""Steps that a worker has to make until its earlier failures are forgotten."""

FIRST_PAUSE_S = 0.0
NEXT_PAUSE_S = 2.0
"""Before the first attempt to start a worker again, and before the second; doubled for each further one."""


@dataclass(frozen=True)
class Died:
    """The worker's process ended."""

    cause: str


@dataclass(frozen=True)
class Silent:
    """Its process has not answered for ``seconds``."""

    seconds: float


@dataclass(frozen=True)
class Late:
    """Its process answers, and its slice is not done after ``seconds``, well beyond what was expected."""

    seconds: float


@dataclass(frozen=True)
class Hung:
    """As :class:`Late`, for so long that it will not end by itself."""

    seconds: float


@dataclass(frozen=True)
class Unlinked:
    """Its process answers, and it can't exchange gradients and weights with a shard."""

    cause: str


@dataclass(frozen=True)
class Drained:
    """The user wants its host to leave."""


Evidence = Died | Silent | Late | Hung | Unlinked | Drained


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How the run stands when a worker fails.

    Attributes:
        others: workers that take part, without this one.
        coming: workers that may take part again, without this one: silent, late, or being started.
        attempts: times that this worker was started again, or failed otherwise, since it last worked well.
        restartable: workers of this run can be started while it is on.
        catches_up: who missed a step can get its weights later, from a server; else only another worker has them.
    """

    others: int
    coming: int
    attempts: int = 0
    restartable: bool = True
    catches_up: bool = True


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
    """The run can't go on."""

    cause: str


Decision = SetAside | Restart | Drop | Fail


def decide(evidence: Evidence, standing: Standing) -> Decision:
    """What is done about the worker."""
    decision = _about(evidence, standing)
    if isinstance(decision, Drop) and not standing.others and not standing.coming:
        return Fail(f"the last worker was lost: {decision.cause}")
    if not isinstance(decision, Fail) and not standing.others and not standing.catches_up:
        return Fail(f"the last worker was lost, and the weights with it: {decision.cause}")
    return decision


def pause_s(attempts: int) -> float:
    """Seconds before a worker is started again that was so often before."""
    return FIRST_PAUSE_S if not attempts else NEXT_PAUSE_S * 2.0 ** (attempts - 1)


def _about(evidence: Evidence, standing: Standing) -> Decision:
    match evidence:
        case Drained():
            return Drop("drained")
        case Silent(seconds):
            cause = f"no answer for {seconds:.1f} s"
            return SetAside(cause, lost=True) if standing.catches_up else _again(cause, standing)
        case Late():
            cause = "its slice is late"
            return SetAside(cause, lost=False) if standing.catches_up else _again(cause, standing)
        case Unlinked(cause) if not standing.attempts and standing.restartable and standing.catches_up:
            return SetAside(cause, lost=True)
        case Unlinked(cause) | Died(cause):
            return _again(cause, standing)
        case Hung(seconds):
            return _again(f"its slice was not done after {seconds:.0f} s, though its process answers", standing)


def _again(cause: str, standing: Standing) -> Decision:
    if not standing.restartable:
        return Drop(cause)
    if standing.attempts >= MOST_ATTEMPTS:
        return Drop(f"{cause} (given up after {standing.attempts} attempts)")
    return Restart(cause, pause_s(standing.attempts))
