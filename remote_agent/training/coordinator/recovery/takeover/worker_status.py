"""Finds the state of a run whose coordinator was killed, from its workers' answers and the record of slices. Pure.

A worker that has started a step knows how the whole batch was cut, so one worker is enough to know a step. The newest
step may be open: some workers have started it, others never got it; or it is complete, but the work after a step (a
checkpoint, the end of the run) may be missing. All earlier steps are complete.
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
"""Steps by which a worker without slices may be behind a worker that has started the newest step."""


class TakeoverRefused(Exception):
    """The actors of the killed coordinator can't continue; the text says why. Nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class UnreportedStep:
    """A complete step that is not on record: its cut, and the results of the workers that could be asked."""

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
    """The point at which a takeover continues; see :func:`takeover_point`.

    Attributes:
        step: the last step that is known to be complete; on record, or in ``unreported``.
        position: its end in the order of samples.
        unreported: the steps that are missing in the record, in order.
        open_step: the step after it, if a worker knows of one; it may be on record.
        behind: workers that do not take part in it, and can't take part in later steps without help.
    """

    step: int
    position: int
    unreported: Mapping[int, UnreportedStep]
    open_step: OpenStep | None
    behind: tuple[WorkerHandle, ...]

    @property
    def newest(self) -> int:
        """The newest step that a worker knows."""
        return self.step + (self.open_step is not None)

    def last_reported(self, step: int) -> tuple[int, int]:
        """The last step with an event once ``unreported`` are written, and its end; the journal's last is ``step``."""
        if self.open_step is not None and step >= self.newest:
            return self.newest, self.open_step.common.spans[-1].end
        return self.step, self.position


def takeover_point(
    statuses: Sequence[tuple[WorkerHandle, WorkerStatus]], made: Mapping[int, Sequence[SliceSpan]]
) -> TakeoverPoint:
    """Combine the workers' statuses and the record of slices.

    Args:
        statuses: of all workers that could be asked, at least one.
        made: the slices of each step on record.

    Raises:
        TakeoverRefused: they contradict each other.
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
            dataclasses.replace(common, step=step, spans=_cut_of(step, cuts, made), peers=())
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
