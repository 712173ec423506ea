"""Holds the state of a step in progress: each worker's slice, and at the end the counted slices and the times."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from remote_agent.protocol import WorkerStep
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.session import OpenStep, Session
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.shared.messages import Counted, Slice, StreamedAnswer, StreamedResult, StreamedTask
from remote_agent.training.shared.rpc import Ref
from remote_agent.training.shared.slices import SliceSpan, counted_at
from remote_agent.training.wire.endpoint import StreamInfo


def slices_of(task: StreamedTask) -> tuple[Slice, ...]:
    """What a task computes."""
    return (task.own, *task.more) if task.own is not None else ()


def samples_of(task: StreamedTask) -> int:
    """Number of samples of a task's slices; 0 without one."""
    return sum(len(each.indices) for each in slices_of(task))


def peer_of(task: StreamedTask) -> str:
    """The relay that sums a task's slice; empty: none."""
    return task.peers[task.own.index] if task.own is not None and task.peers else ""


def whole_slice(task: StreamedTask, order: SampleOrder) -> StreamedTask:
    """The task with all spans that are one slice to the shards with its own."""
    assert task.own is not None, "it has a slice"
    places = counted_at(len(task.spans), task.peers)
    slices = [
        dataclasses.replace(task.own, index=index, indices=order.take(span.begin, span.end), begin=span.begin)
        for index, span in enumerate(task.spans)
        if places[index] == places[task.own.index]
    ]
    return dataclasses.replace(task, own=slices[0], more=tuple(slices[1:]))


def bytes_moved(results: Sequence[tuple[SliceAssignment, StreamedResult]], entry: StreamInfo | None) -> tuple[int, int]:
    """Bytes that workers sent and received in a step; workers with a relay count once, as the relay does."""
    alone, sending, getting = [], set[str](), set[str]()
    for part, result in results:
        peer = entry.peer(part.member.host) if entry is not None else ""
        if peer:
            sending |= {peer} if result.bytes_out else set()
            getting.add(peer)
        else:
            alone.append((result.bytes_out, result.bytes_in))
    pushed, pulled = sum(out for out, _ in alone), sum(into for _, into in alone)
    if entry is not None:
        pushed += len(sending) * entry.codecs.gradients.size(entry.layout.numel)
        pulled += len(getting) * entry.codecs.weights.size(entry.layout.numel)
    return pushed, pulled


@dataclass(eq=False)
class SliceAssignment:
    """A worker's part in a step.

    ``lost_by`` is the worker that had the slice before; a ``repair`` is made beside the worker's own part in the step.
    """

    task: StreamedTask
    member: WorkerHandle
    answer: Ref[StreamedAnswer]
    submitted: float
    lost_by: str = ""
    result: StreamedResult | Counted | None = None
    repair: bool = False

    @property
    def samples(self) -> int:
        """Number of samples of the slice; 0 without one."""
        return samples_of(self.task)

    @property
    def owner(self) -> str:
        """The worker for which the slice was cut."""
        return self.lost_by or self.member.name

    @property
    def expected_s(self) -> float:
        """Expected time of the slice on its worker."""
        return max(self.member.usual_call_s, self.member.track.current.seconds(self.samples))

    @property
    def computing_s(self) -> float:
        """Expected computing time of the slice on its worker."""
        return max(self.member.track.seconds, self.member.track.current.seconds(self.samples))


@dataclass(eq=False)
class StepInFlight:
    """A step in progress."""

    common: StreamedTask  # the workers' task, without a slice
    end: int = 0  # of the positions that were used with it
    delayed: bool = False  # its workers have answered before it is whole; that is waited for in the next one
    parts: list[SliceAssignment] = field(default_factory=list)
    earlier: list[SliceAssignment] = field(default_factory=list)  # lost slices of the delayed step before, issued again
    unassigned: list[SliceAssignment] = field(default_factory=list)  # lost slices that no worker was there for
    begun: float = 0.0  # when its slices could be computed, at the latest
    inherited: bool = False  # it was issued by a coordinator that was killed

    def task(self, own: Slice | None) -> StreamedTask:
        """A worker's task with this slice."""
        return dataclasses.replace(self.common, own=own)

    @property
    def step(self) -> int:
        return self.common.step

    @property
    def awaited(self) -> list[SliceAssignment]:
        return [part for part in (*self.parts, *self.earlier) if part.result is None]

    def streamed(self) -> list[tuple[SliceAssignment, StreamedResult]]:
        """The parts that were made in this step, with their results."""
        return [(part, part.result) for part in self.parts if isinstance(part.result, StreamedResult)]

    def times(self, seconds: float, now: float) -> tuple[WorkerStep, ...]:
        """The parts of the time of each worker with a slice; ``seconds`` is the step's, ``now`` on our clock.

        Push: from the gradient's computation until it was sent. Pull: from the moment when the last worker's gradient
        was sent until the new weights were here. Wait: the rest (slower workers, the step before).
        """
        results = self.streamed()
        gathered = max((part.member.clock.here(result.pushed) for part, result in results), default=now)
        times = []
        for part, result in results:
            if not part.samples:
                continue
            pull = max(0.0, part.member.clock.here(result.stamps.left) - gathered)
            spent = part.member.times(
                part.samples, seconds, compute_s=result.compute_s, push_s=result.push_s, pull_s=pull
            )
            times.append(spent)
        return tuple(times)

    def counted(self) -> tuple[SliceSpan, ...]:
        """The counted slices with their workers; a slice counted before its worker was lost belongs to this worker."""
        return tuple(
            SliceSpan(
                part.task.spans[each.index].worker if isinstance(part.result, Counted) else part.member.name,
                each.begin,
                each.begin + len(each.indices),
            )
            for part in self.parts
            for each in slices_of(part.task)
        )


# --- A step that a killed coordinator had issued ---------------------------------------------------------------------


def resumed(session: Session, open_step: OpenStep) -> tuple[StepInFlight, dict[str, StreamedTask]]:
    """Continue the step: ask workers that have started it for their results, and give the others their parts.

    The original cut is used. So a slice that is computed twice, since its first worker had sent a part of it before it
    was lost, is the same slice.

    Returns:
        The step, and the tasks of slices whose workers are gone, by the workers' names, to be issued to others.
    """
    now = time.monotonic()
    common = dataclasses.replace(open_step.common, coordinator=session.coordinator)
    current = StepInFlight(common, common.spans[-1].end, inherited=True)
    begun = {task.own.index for task in open_step.begun.values() if task.own is not None}
    missing = {
        span.worker: Slice(
            index=index,
            indices=session.order.take(span.begin, span.end),
            begin=span.begin,
            first=common.spans[0].begin,
            total=common.samples,
        )
        for index, span in enumerate(common.spans)
        if index not in begun
    }
    for member in session.members:
        if member.name in open_step.begun:
            task, answer = open_step.begun[member.name], member.call("outcome", common.step)
        else:
            for earlier in open_step.earlier.get(member.name, ()):
                member.call("step", dataclasses.replace(earlier, coordinator=session.coordinator))
            task = current.task(missing.pop(member.name, None))
            answer = member.call("step", task)
        current.parts.append(SliceAssignment(task, member, answer, now))
    return current, {owner: current.task(own) for owner, own in missing.items()}
