"""Where a run stands whose coordinator was killed: what its workers say, and what is on record, put together. Pure.

A worker that has begun or done a step knows how the whole batch was cut, so a step is known as soon as one worker has
begun it. The newest such step may be open: some have begun it, some were never given it, or it is whole, but it is
not known whether what comes after a step was done (a checkpoint, the end of the run). All steps before it are whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.session import OpenStep
from remote_agent.training.data import record
from remote_agent.training.shared.messages import StreamedResult, StreamedTask, WorkerStatus
from remote_agent.training.shared.slices import SliceSpan

MAX_BEHIND = 2
"""Steps that a worker without a slice in them may be behind one that has begun the newest."""


class TakeoverRefused(Exception):
    """The actors of the killed coordinator can't simply go on; the text says why. Nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class UnreportedStep:
    """A whole step that is not on record: its cut, and what came of the slices whose workers could be asked."""

    spans: tuple[SliceSpan, ...]
    results: Mapping[int, tuple[WorkerHandle, StreamedResult]]

    @property
    def counted(self) -> tuple[SliceSpan, ...]:
        """Its slices for the record, each with its worker."""
        return tuple(
            dataclasses.replace(span, worker=self.results[index][0].name) if index in self.results else span
            for index, span in enumerate(self.spans)
        )


@dataclass(frozen=True, kw_only=True)
class TakeoverPoint:
    """See :func:`takeover_point`.

    Attributes:
        step: the last step that is whole, as far as is known; on record, or in ``unreported``.
        position: its end in the order of samples.
        unreported: the steps that the record lacks, in order.
        open_step: the step after it, if a worker tells of one; it may be on record.
        behind: workers that take no part in it, and can't take part in what follows without help.
    """

    step: int
    position: int
    unreported: Mapping[int, UnreportedStep]
    open_step: OpenStep | None
    behind: tuple[WorkerHandle, ...]

    @property
    def newest(self) -> int:
        """The newest step that a worker knows of."""
        return self.step + (self.open_step is not None)

    def last_reported(self, step: int) -> tuple[int, int]:
        """The last step that has an event, once ``unreported`` have one, and its end; the journal told of ``step``."""
        if self.open_step is not None and step >= self.newest:
            return self.newest, self.open_step.common.spans[-1].end
        return self.step, self.position


def takeover_point(
    statuses: Sequence[tuple[WorkerHandle, WorkerStatus]], made: Mapping[int, Sequence[SliceSpan]]
) -> TakeoverPoint:
    """What the statuses of the workers and the record of slices show together.

    Args:
        statuses: of all workers that could be asked, at least one.
        made: the slices of each step on record.

    Raises:
        TakeoverRefused: they do not fit together.
    """
    recorded = max(made, default=0)
    newest = max(max(status.step, *(task.step for task in _given(status)), 0) for _, status in statuses)
    if recorded > newest:
        raise TakeoverRefused(f"step {recorded} is on record, and the workers know of {newest} steps")
    cuts = {task.step: task for _, status in statuses for task in _given(status)}
    position = max((span.end for span in made.get(recorded, ())), default=0)
    if newest not in cuts and newest == recorded:  # they have gone back to it, with other shards
        behind = tuple(member for member, status in statuses if status.following or status.step < newest)
        return TakeoverPoint(step=newest, position=position, unreported={}, open_step=None, behind=behind)
    unreported: dict[int, UnreportedStep] = {}
    for number in range(recorded + 1, newest + 1):
        cut = cuts.get(number)
        end = cut.spans[-1].end if cut is not None else position
        if cut is None or record.gaps_and_overlaps(cut.spans, end, position):
            raise TakeoverRefused(f"no worker knows how step {number} was cut")
        if number < newest:
            unreported[number], position = UnreportedStep(spans=cut.spans, results=_results(statuses, number)), end
            if not unreported[number].results:
                raise TakeoverRefused(f"no worker knows what came of step {number}")
    common = dataclasses.replace(cuts[newest], own=None)
    begun = {member.name: task for member, status in statuses for task in _given(status) if task.step == newest}
    behind = tuple(
        member
        for member, status in statuses
        if member.name not in begun and (status.following or status.step < newest - MAX_BEHIND)
    )
    earlier = {
        member.name: tuple(
            dataclasses.replace(common, step=step, spans=_cut_of(step, cuts, made))
            for step in range(status.step + 1, newest)
            if status.under_way is None or status.under_way.step != step
        )
        for member, status in statuses
        if member.name not in begun and member not in behind
    }
    open_step = OpenStep(common=common, begun=begun, earlier=earlier)
    return TakeoverPoint(
        step=newest - 1, position=common.spans[0].begin, unreported=unreported, open_step=open_step, behind=behind
    )


def _given(status: WorkerStatus) -> Iterator[StreamedTask]:
    """A worker's own parts in the last steps, in order."""
    for task, _ in status.done:
        yield task
    if status.under_way is not None:
        yield status.under_way


def _cut_of(
    step: int, cuts: Mapping[int, StreamedTask], made: Mapping[int, Sequence[SliceSpan]]
) -> tuple[SliceSpan, ...]:
    if step in cuts:
        return cuts[step].spans
    if step not in made:
        raise TakeoverRefused(f"no worker knows how step {step} was cut")
    return tuple(made[step])


def _results(
    statuses: Sequence[tuple[WorkerHandle, WorkerStatus]], step: int
) -> dict[int, tuple[WorkerHandle, StreamedResult]]:
    return {
        task.own.index: (member, answer)
        for member, status in statuses
        for task, answer in (*status.repaired, *status.done)
        if task.step == step and task.own is not None and isinstance(answer, StreamedResult)
    }
