"""What is decided about a failed worker: one thing, the same for the same evidence, and no device is given up."""

from __future__ import annotations

import dataclasses

import pytest

from remote_agent.training.coordinator.recovery import policy
from remote_agent.training.coordinator.recovery.policy import (
    Died,
    Drained,
    Drop,
    Evidence,
    Fail,
    Hung,
    Late,
    Restart,
    RunStatus,
    SetAside,
    ShardLinkDown,
    Silent,
    TooLate,
    decide,
)

EVIDENCE: tuple[Evidence, ...] = (
    Died("no memory"),
    Silent(3.1),
    Late(4.2),
    Hung(50.0),
    ShardLinkDown("broken pipe"),
    TooLate(7),
    Drained(),
)
STANDINGS = tuple(
    RunStatus(others=others, coming=coming, attempts=attempts)
    for others in range(3)
    for coming in range(3)
    for attempts in range(policy.MAX_ATTEMPTS + 2)
)

for_all_evidence = pytest.mark.parametrize("seen", EVIDENCE, ids=lambda one: type(one).__name__)


@for_all_evidence
def test_every_failure_leads_to_one_decision_with_a_cause(seen: Evidence) -> None:
    for standing in STANDINGS:
        decision = decide(seen, standing)
        assert isinstance(decision, SetAside | Restart | Drop | Fail)
        assert decision.cause


@for_all_evidence
def test_a_run_fails_only_when_nobody_is_left_and_nobody_can_come_back(seen: Evidence) -> None:
    for standing in STANDINGS:
        decision = decide(seen, standing)
        nobody = not standing.others and not standing.coming
        if isinstance(decision, Fail):
            assert nobody
            assert isinstance(decide(seen, dataclasses.replace(standing, others=1)), Drop | Restart)
        assert not (nobody and isinstance(decision, Drop))


@pytest.mark.parametrize(("seen", "lost"), [(Silent(3.1), True), (Late(4.2), False)])
def test_what_was_silent_or_late_is_never_ended(seen: Evidence, lost: bool) -> None:
    for standing in STANDINGS:
        decision = decide(seen, standing)
        assert isinstance(decision, SetAside)
        assert decision.lost is lost


@for_all_evidence
def test_no_device_is_given_up_while_others_train(seen: Evidence) -> None:
    for attempts in (0, 1, 5, 20, 1000):
        decision = decide(seen, RunStatus(others=1, coming=0, attempts=attempts))
        assert isinstance(decision, Drop) is isinstance(seen, Drained)
        if isinstance(decision, Restart):
            assert decision.after_s <= policy.LONGEST_PAUSE_S


def test_the_last_worker_is_not_started_again_for_ever() -> None:
    for attempts in range(policy.MAX_ATTEMPTS + 2):
        decision = decide(Died("no memory"), RunStatus(others=0, coming=0, attempts=attempts))
        assert isinstance(decision, Fail) is (attempts >= policy.MAX_ATTEMPTS)


@for_all_evidence
def test_where_only_workers_have_the_weights_none_is_waited_for_and_none_outlives_the_last(seen: Evidence) -> None:
    for standing in STANDINGS:
        decision = decide(seen, dataclasses.replace(standing, on_server=False))
        assert isinstance(decision, Restart | Drop if standing.others else Fail)


def test_a_host_that_the_user_wants_to_leave_leaves() -> None:
    for standing in STANDINGS:
        assert isinstance(decide(Drained(), standing), Drop | Fail)


def test_the_first_attempt_is_made_at_once_and_pauses_double() -> None:
    pauses = [policy.pause_s(attempt) for attempt in range(4)]
    assert pauses == [0.0, 2.0, 4.0, 8.0]


def test_a_worker_that_cannot_exchange_is_given_one_chance_to_do_so_again() -> None:
    first = decide(ShardLinkDown("broken pipe"), RunStatus(others=1, coming=0))
    second = decide(ShardLinkDown("broken pipe"), RunStatus(others=1, coming=0, attempts=1))
    assert first == SetAside("broken pipe", lost=True)
    assert isinstance(second, Restart)


def test_a_decision_is_a_sentence_in_the_log() -> None:
    alone, again = RunStatus(others=0, coming=0, attempts=9), RunStatus(others=1, coming=0, attempts=1)
    said = [str(decide(Died("no memory"), status)) for status in (RunStatus(others=1, coming=0), again, alone)]
    assert said == [
        "no memory; its process is started again",
        "no memory; its process is started again in 2 s",
        "the last worker was lost: no memory (after 9 attempts); the run can't go on",
    ]
    assert str(decide(Drained(), again)) == "drained; it leaves the run"
    late = str(decide(policy.Late(9.0), again))
    assert late == "its slice is late; it takes no part until it has caught up"
