"""Holds the state of one step of all-reduce: the slices' workers, and the awaited answers."""

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
    """A slice of a step and its worker; ``lost_by`` is the worker that had it before, ``issued`` the time of that."""

    part: Slice
    member: WorkerHandle
    lost_by: str = ""
    issued: float = 0.0


@dataclass(eq=False)
class Call:
    """A worker's part in the current reduction."""

    member: WorkerHandle
    answer: Ref[Answer]
    predicted_s: float

    @property
    def expected_s(self) -> float:
        """Usual time of the call, with the wait for the others."""
        return max(self.member.usual_call_s, self.predicted_s)


@dataclass(eq=False)
class ReductionInFlight:
    """A step in progress.

    ``due`` are the slices that still have to be given out. ``moved`` is the last reported progress of the reduction.
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
        """The step's final slices with their workers."""
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
    """The workers that reduce together, and the data that each of them needs."""

    places: dict[WorkerHandle, GroupMembership]

    @property
    def number(self) -> int:
        return next(iter(self.places.values())).number
