"""A worker heeds one coordinator, and tells the next what it was given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from remote_agent.training.shared.messages import ShardLinkDown, StreamedTask, WorkerStatus
from remote_agent.training.worker.assignments import MAX_TASKS, Assignments
from tests.training.cuts import cut

DONE = ShardLinkDown(cause="for a test")


def task(step: int, coordinator: str = "first") -> StreamedTask:
    return StreamedTask(step=step, spans=cut(3, 2), own=None, coordinator=coordinator)


def at(finished: int, following: bool = False) -> SimpleNamespace:
    return SimpleNamespace(finished=finished, following=following, is_aside=False)


def test_steps_of_a_coordinator_that_another_one_took_over_are_not_begun() -> None:
    given = Assignments()
    assert given.begin(task(1, ""))
    given.end(task(1, ""), DONE)
    assert given.account("second", at(1)) == WorkerStatus(step=1, done=((task(1, ""), DONE),))
    assert not given.begin(task(2, ""))
    assert given.begin(task(2, "second"))
    given.account("third", at(1))
    assert not given.begin(task(2, "second"))
    assert not given.begin(task(2, "first"))


def test_who_gives_the_first_step_is_heeded_and_nobody_else() -> None:
    given = Assignments()
    assert given.begin(task(1))
    assert not given.begin(task(2, "somebody else"))


def test_a_step_that_is_under_way_is_told_of_and_its_outcome_later() -> None:
    given = Assignments()
    given.begin(task(4))
    account = given.account("second", at(3))
    assert account is not None
    assert account.under_way == task(4)
    given.end(task(4), DONE)
    assert given.outcome(4) == DONE
    after = given.account("third", at(4))
    assert after is not None
    assert after.under_way is None


def test_the_last_tasks_are_remembered_until_the_run_goes_back() -> None:
    given = Assignments()
    for step in range(1, MAX_TASKS + 4):
        given.begin(task(step))
        given.end(task(step), DONE)
        given.repaired(task(step), DONE)
    account = given.account("second", at(MAX_TASKS + 3))
    assert account is not None
    assert [done.step for done, _ in account.done] == list(range(4, MAX_TASKS + 4))
    assert account.repaired == account.done
    given.forget()
    assert given.account("second", at(0)) == WorkerStatus(step=0)
    with pytest.raises(StopIteration):
        given.outcome(4)


def test_without_streamed_steps_there_is_nothing_to_tell_and_the_new_one_is_heeded_all_the_same() -> None:
    given = Assignments()
    assert given.account("second", None) is None
    assert not given.begin(task(1, "first"))
