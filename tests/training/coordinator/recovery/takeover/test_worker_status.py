"""What the workers say and what is on record must fit together; else nothing is taken over."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.protocol import DeviceSpec
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.placement import Node, Placement
from remote_agent.training.coordinator.recovery.takeover.takeover import step_fields
from remote_agent.training.coordinator.recovery.takeover.worker_status import (
    TakeoverRefused,
    UnreportedStep,
    takeover_point,
)
from remote_agent.training.data import record
from remote_agent.training.shared.messages import Slice, Stamps, StreamedResult, StreamedTask, WorkerStatus
from remote_agent.training.shared.rpc import Actor
from remote_agent.training.shared.slices import SliceSpan
from remote_agent.training.worker.assignments import MAX_TASKS
from tests.training.cuts import cut

Cut = Sequence[int]
"""Samples of each worker in a step; 0: it had no slice."""


def member(number: int) -> WorkerHandle:
    spec = DeviceSpec(host=f"h{number}", device="cpu", name="")
    node = Node(host=spec.host, selector=("", ""), cpus=1.0, gpus=0.0)
    seat = Placement(worker=f"h{number}/cpu", spec=spec, node=node, threads=1)
    return WorkerHandle(seat, Actor(None), SpeedTrack(DeviceProfile(1.0, 0.0)))


def spans_of(cuts: Sequence[Cut]) -> list[tuple[SliceSpan, ...]]:
    """The slices of each step."""
    position, result = 0, []
    for each in cuts:
        result.append(cut(*each, begin=position))
        position += sum(each)
    return result


def result_of() -> StreamedResult:
    stamps = Stamps(entered=0.0, left=1.0)
    return StreamedResult(loss=1.0, weight=1.0, compute_s=0.1, pushed=0.1, bytes_out=1, bytes_in=1, stamps=stamps)


def accounts_of(cuts: Sequence[Cut]) -> list[tuple[WorkerHandle, WorkerStatus]]:
    """What the workers tell after steps that were cut so, all done; each of its last ones."""
    done: list[list[tuple[StreamedTask, StreamedResult]]] = [[] for _ in cuts[0]]
    for step, spans in enumerate(spans_of(cuts), start=1):
        for worker, tasks in enumerate(done):
            tasks.append((task_of(step, spans, worker), result_of()))
    return [
        (member(worker), WorkerStatus(step=len(cuts), done=tuple(tasks[-MAX_TASKS:])))
        for worker, tasks in enumerate(done)
    ]


def task_of(step: int, spans: tuple[SliceSpan, ...], worker: int) -> StreamedTask:
    mine = [(index, span) for index, span in enumerate(spans) if span.worker == f"h{worker}/cpu"]
    own = [
        Slice(index=index, indices=np.arange(span.begin, span.end), total=20, begin=span.begin) for index, span in mine
    ]
    return StreamedTask(step=step, spans=spans, own=own[0] if own else None)


def recorded(cuts: Sequence[Cut], steps: int) -> dict[int, tuple[SliceSpan, ...]]:
    """The record of the first ``steps`` of them."""
    return dict(enumerate(spans_of(cuts)[:steps], start=1))


def ran_to(account: WorkerStatus, steps: int, *, under_way: bool = False) -> WorkerStatus:
    """The same worker when it had done so many steps, and had begun the next one."""
    tasks = {task.step: (task, answer) for task, answer in account.done}
    following = tasks[steps + 1][0] if under_way else None
    done = tuple(entry for step, entry in tasks.items() if step <= steps)
    return WorkerStatus(step=steps, done=done, under_way=following)


workers = some.shared(some.integers(1, 4), key="workers")
some_cuts = workers.flatmap(
    lambda count: some.lists(some.lists(some.integers(0, 9), min_size=count, max_size=count), min_size=1).filter(
        lambda cuts: all(sum(each) for each in cuts)
    )
)


@given(cuts=some_cuts, unwritten=some.integers(0, 3), unbegun=some.sets(some.integers(0, 3)))
def test_what_is_not_on_record_is_told_by_the_workers(cuts: list[list[int]], unwritten: int, unbegun: set[int]) -> None:
    """The newest step is open: some workers have begun it, others were never given it; or it is on record already."""
    known, last = max(0, len(cuts) - unwritten), len(cuts)
    accounts = accounts_of(cuts)
    late = {worker for worker in unbegun if worker < len(accounts)} if known < last else set()
    if len(late) == len(accounts):
        late.pop()
    if known < last:
        for worker, (who, account) in enumerate(accounts):
            accounts[worker] = (who, ran_to(account, last - 1, under_way=worker not in late))
    found = takeover_point(accounts, recorded(cuts, known))
    assert found.newest == last
    assert found.behind == ()
    assert list(found.unreported) == list(range(known + 1, last))
    assert found.step == last - 1
    spans = spans_of(cuts)
    for step, untold in found.unreported.items():
        assert untold.counted == spans[step - 1]
    assert found.open_step is not None
    assert found.position == spans[-1][0].begin
    assert found.open_step.common == StreamedTask(step=last, spans=spans[-1], own=None)
    assert {*found.open_step.begun} == {who.name for worker, (who, _) in enumerate(accounts) if worker not in late}
    assert found.open_step.earlier == {who.name: () for worker, (who, _) in enumerate(accounts) if worker in late}


def test_a_slice_of_a_worker_that_is_gone_is_known_from_the_others() -> None:
    cuts = [[3, 2, 1], [4, 1, 1], [2, 3, 1]]
    accounts = accounts_of(cuts)[:2]
    found = takeover_point(accounts, recorded(cuts, 1))
    assert found.unreported[2].counted == spans_of(cuts)[1]
    assert {*found.unreported[2].results} == {0, 1}
    assert found.open_step is not None
    assert found.open_step.common.spans == spans_of(cuts)[2]
    assert {*found.open_step.begun} == {"h0/cpu", "h1/cpu"}


def test_who_did_a_lost_slice_is_on_record() -> None:
    cuts = [[3, 2], [4, 1]]
    (first, account), _ = accounts_of(cuts)
    lost = task_of(1, spans_of(cuts)[0], 1)
    repaired = dataclasses.replace(account, repaired=((lost, result_of()),))
    found = takeover_point([(first, repaired)], {})
    assert [span.worker for span in found.unreported[1].counted] == ["h0/cpu", "h0/cpu"]
    assert record.gaps_and_overlaps(found.unreported[1].counted, 5) == ()


def test_a_worker_goes_through_the_steps_that_it_was_not_given() -> None:
    """It had no slice in the step before, which is whole without it."""
    cuts = [[3, 2], [5, 0], [2, 3]]
    (first, ahead), (second, behind) = accounts_of(cuts)
    accounts = [(first, ran_to(ahead, 2, under_way=True)), (second, ran_to(behind, 1))]
    for known in (1, 2):
        open_step = takeover_point(accounts, recorded(cuts, known)).open_step
        assert open_step is not None
        (earlier,) = open_step.earlier["h1/cpu"]
        assert earlier == StreamedTask(step=2, spans=spans_of(cuts)[1], own=None)
    begun = (second, ran_to(behind, 1, under_way=True))
    open_step = takeover_point([accounts[0], begun], recorded(cuts, 1)).open_step
    assert open_step is not None
    assert open_step.earlier == {"h1/cpu": ()}, "it is in that step"


def test_who_takes_no_part_or_is_far_behind_is_left_behind() -> None:
    cuts = [[3, 2, 1]] * 5
    accounts = accounts_of(cuts)
    others = [accounts[0], (accounts[1][0], dataclasses.replace(ran_to(accounts[1][1], 4), following=True))]
    others.append((accounts[2][0], ran_to(accounts[2][1], 2)))
    assert takeover_point(others, recorded(cuts, 4)).behind == (accounts[1][0], accounts[2][0])


def test_what_nobody_tells_of_is_not_made_up() -> None:
    cuts = [[3, 2], [4, 1], [2, 3]]
    silent = [(who, dataclasses.replace(account, done=())) for who, account in accounts_of(cuts)]
    with pytest.raises(TakeoverRefused, match="how step 3 was cut"):
        takeover_point(silent, recorded(cuts, 2))
    assert takeover_point(silent, recorded(cuts, 3)).step == 3
    with pytest.raises(TakeoverRefused, match="step 3 is on record"):
        takeover_point(accounts_of(cuts[:2]), recorded(cuts, 3))
    others = accounts_of([[3, 2], [4, 1], [2, 3]])
    with pytest.raises(TakeoverRefused, match="how step 2 was cut"):
        takeover_point(others, {1: cut(3, 3)})


def test_a_step_whose_only_slice_is_gone_is_not_told_of() -> None:
    """The other one went through it, and knows how it was cut, but not what came of it."""
    cuts = [[3, 2], [5, 0], [2, 3]]
    with pytest.raises(TakeoverRefused, match="what came of step 2"):
        takeover_point(accounts_of(cuts)[1:], recorded(cuts, 1))


def test_a_record_with_a_hole_is_not_filled() -> None:
    cuts = [[3, 2], [5, 0], [2, 3]]
    (first, ahead), (second, behind) = accounts_of(cuts)
    ahead = dataclasses.replace(ran_to(ahead, 2, under_way=True), done=())
    made = {step: spans for step, spans in recorded(cuts, 2).items() if step != 2}
    made |= {step: spans_of(cuts)[step - 1] for step in (3,)}
    with pytest.raises(TakeoverRefused, match="how step 2 was cut"):
        takeover_point([(first, ahead), (second, ran_to(behind, 1))], made)


def test_what_has_an_event_is_told_of_with_its_samples() -> None:
    cuts = [[3, 2], [4, 1], [2, 2]]
    found = takeover_point(accounts_of(cuts), recorded(cuts, 1))
    assert found.last_reported(1) == found.last_reported(2) == (2, 10), "the journal tells of the second step next"
    assert found.last_reported(3) == (3, 14), "it has the third already"


def test_a_step_that_nobody_watched_took_what_its_slowest_worker_took() -> None:
    results = {}
    for index, (seconds, weight, loss) in enumerate([(2.0, 1.0, 4.0), (3.0, 3.0, 8.0)]):
        stamps = Stamps(entered=10.0, left=10.0 + seconds)
        result = dataclasses.replace(result_of(), compute_s=1.5, stamps=stamps, weight=weight, loss=loss)
        results[index] = (member(index), result)
    fields = step_fields(7, UnreportedStep(spans=cut(4, 6), results=results))
    assert fields["seconds"] == 3.0, "the computing is a part of it"
    assert fields["loss"] == 7.0, "as its slices weigh"
    assert fields["samples"] == 10
