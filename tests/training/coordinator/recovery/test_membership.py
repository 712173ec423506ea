"""What is done about a worker that fails on its way back into the run."""

from __future__ import annotations

import time
from unittest.mock import MagicMock

import pytest

from remote_agent.protocol import DeviceSpec, RunCommand, WorkerLost, WorkerStarting
from remote_agent.states import ControlCommand
from remote_agent.training.coordinator.members import MembershipRecord, Rejoining
from remote_agent.training.coordinator.recovery.membership import Membership
from remote_agent.training.coordinator.recovery.policy import Died

SPEC = DeviceSpec(host="half", device="cpu", name="CPU")


@pytest.mark.parametrize(("has_process", "blamed"), [(True, 1), (False, 0)])
def test_a_process_that_does_not_start_is_not_blamed_on_what_the_one_before_it_died_of(
    has_process: bool, blamed: int
) -> None:
    """Three crashes in one call end the run; those of one process must not be counted three times."""
    session = MagicMock()
    session.membership = MembershipRecord(members=[MagicMock()])
    membership = Membership(session, MagicMock(), MagicMock())
    away = Rejoining(SPEC, MagicMock(), time.monotonic(), lost=True)
    away.follows = MagicMock() if has_process else None
    session.membership.away.append(away)
    membership._failed(5, away, Died("it did not start"))
    assert session.crashes.died.call_count == blamed
    assert session.membership.away == [away], "it is started again"


def test_it_is_told_when_a_worker_is_started_again_and_when_it_is_drained_meanwhile() -> None:
    """Every app that follows the run shows the same of a host that is paused, coming back or drained."""
    session = MagicMock()
    session.membership = MembershipRecord(members=[MagicMock()])
    session.config.strategy = "sync"
    session.joining.hosts = {"half"}
    session.control.poll.side_effect = [[], [RunCommand(command=ControlCommand.DRAIN, host="half")]]
    membership = Membership(session, MagicMock(), MagicMock())
    session.membership.away.append(Rejoining.new(SPEC))
    membership.refresh(5)
    membership.refresh(6)
    told = [(call.args[0], call.kwargs) for call in session.journal.write.call_args_list]
    who = {"worker": "half/cpu", "host": "half", "device": "cpu"}
    drained = {**who, "step": 6, "cause": "drained", "retry_s": None, "silent_s": None}
    assert told == [(WorkerStarting, who), (WorkerLost, drained)]
    assert session.membership.away == []
