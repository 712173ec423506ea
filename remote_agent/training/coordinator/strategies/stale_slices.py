"""Holds the slices in progress of ``ssp`` and ``async``, and makes their part of a step event."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from remote_agent.protocol import WorkerStep
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.shared.messages import Failed, ShardLinkDown, StaleResult, StaleTask
from remote_agent.training.shared.rpc import Ref


@dataclass(eq=False)
class Issued:
    """A worker's slice, its ``place``-th one; ``lost_by`` is the worker that had it before."""

    task: StaleTask
    member: WorkerHandle
    place: int
    answer: Ref[StaleResult | Failed | ShardLinkDown]
    submitted: float
    lost_by: str = ""

    @property
    def samples(self) -> int:
        return len(self.task.own.indices)

    @property
    def expected_s(self) -> float:
        """Expected time on its worker, from its start until its gradient is exchanged."""
        track = self.member.track
        return max(self.member.usual_call_s, track.seconds, track.current.seconds(self.samples))


@dataclass(eq=False)
class Queue:
    """A worker's queue of slices, the oldest first, which is awaited since ``since``."""

    slices: deque[Issued] = field(default_factory=deque)
    since: float = 0.0


def row(member: WorkerHandle, counted: list[tuple[Issued, StaleResult]], seconds: float) -> WorkerStep:
    """One worker's row of a step. Push and pull beside computing cost no time, so only their additional time counts."""
    compute_s = sum(result.compute_s for _, result in counted)
    push_s, pull_s = sum(result.push_s for _, result in counted), sum(result.pull_s for _, result in counted)
    free = max(0.0, seconds - compute_s)
    shown = min(1.0, free / (push_s + pull_s)) if push_s + pull_s > 0 else 0.0
    samples = sum(issued.samples for issued, _ in counted)
    return member.times(samples, seconds, compute_s=compute_s, push_s=shown * push_s, pull_s=shown * pull_s)
