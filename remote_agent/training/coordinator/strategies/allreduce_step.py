"""One step of all-reduce under way: whose the slices are, and what is awaited of whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from remote_agent.protocol import WorkerStep
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.shared.messages import Broken, Failed, GroupMembership, Reduced, Slice
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.shared.slices import SliceSpan

Answer = Reduced | Broken | Failed


@dataclass(eq=False)
class Share:
    """A slice of a step and its worker; ``lost_by`` had it before, ``issued`` is when that was."""

    part: Slice
    member: WorkerHandle
    lost_by: str = ""
    issued: float = 0.0


@dataclass(eq=False)
class Call:
    """A worker's part in a reduction that is under way."""

    member: WorkerHandle
    answer: Ref[Answer]
    predicted_s: float

    @property
    def expected_s(self) -> float:
        """How long it usually takes, with the wait for the others."""
        return max(self.member.usual_call_s, self.predicted_s)


@dataclass(eq=False)
class ReductionInFlight:
    """One step under way.

    ``due`` are the slices that are still to be handed out. ``moved`` is how much was reduced when last asked.
    """

    step: int
    samples: int
    end: int  # of the positions that were used with it
    shares: list[Share]
    due: list[Share] = field(default_factory=list)
    calls: dict[WorkerHandle, Call] = field(default_factory=dict)
    submitted: dict[WorkerHandle, float] = field(default_factory=dict)
    moved: int | None = None

    @property
    def spans(self) -> tuple[SliceSpan, ...]:
        """Whose slices the step's samples were in the end."""
        return tuple(
            SliceSpan(share.member.name, share.part.begin, share.part.begin + len(share.part.indices))
            for share in self.shares
        )


def worker_times(results: Mapping[WorkerHandle, Reduced], seconds: float, gathered: float) -> Iterator[WorkerStep]:
    """Where the workers' time went that had a slice, in a step of ``seconds``.

    The reduction lasts from ``gathered``, when the last worker was ready, until the worker had the sums; half of it is
    push, half pull.
    """
    for member, result in results.items():
        if result.computed:
            one_way_s = max(0.0, member.clock.here(result.stamps.left) - gathered) / 2
            compute_s = sum(each.compute_s for each in result.computed)
            samples = sum(each.samples for each in result.computed)
            yield member.times(samples, seconds, compute_s=compute_s, push_s=one_way_s, pull_s=one_way_s)


@dataclass(frozen=True, eq=False)
class Group:
    """The workers that reduce together, and what each of them must know."""

    places: dict[WorkerHandle, GroupMembership]

    @property
    def number(self) -> int:
        return next(iter(self.places.values())).number
