"""Slices that are under way where no worker waits for a whole step, and what a step event tells of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from remote_agent.protocol import WorkerStep
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.shared.messages import Failed, ShardLinkDown, StaleResult, StaleTask
from remote_agent.training.shared.rpc import Ref


@dataclass(eq=False)
class Issued:
    """A slice that a worker has, the ``place``-th one that it was given; ``lost_by`` is the worker before."""

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
        """How long it takes its worker, from its beginning until its gradient is exchanged, as far as is known."""
        track = self.member.track
        return max(self.member.usual_call_s, track.seconds, track.current.seconds(self.samples))


@dataclass(eq=False)
class Queue:
    """What a worker has to do: the oldest slice first, which is awaited since ``since``."""

    slices: deque[Issued] = field(default_factory=deque)
    since: float = 0.0


def row(member: WorkerHandle, counted: list[tuple[Issued, StaleResult]], seconds: float) -> WorkerStep:
    """One worker's part of a step. Push and pull beside computing cost no time: what is told is what they added."""
    compute_s = sum(result.compute_s for _, result in counted)
    push_s, pull_s = sum(result.push_s for _, result in counted), sum(result.pull_s for _, result in counted)
    free = max(0.0, seconds - compute_s)
    shown = min(1.0, free / (push_s + pull_s)) if push_s + pull_s > 0 else 0.0
    samples = sum(issued.samples for issued, _ in counted)
    return member.times(samples, seconds, compute_s=compute_s, push_s=shown * push_s, pull_s=shown * pull_s)
