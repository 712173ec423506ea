"""What is said of a worker that died in the user's code, by how it ended and whether its host lives."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from remote_agent.current_call import LastCall, Place
from remote_agent.training.coordinator.processes import crashes
from remote_agent.training.coordinator.processes.crashes import Crashes
from remote_agent.training.coordinator.processes.measure import Candidate, measure
from remote_agent.training.errors import LostAtStart
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import PING, WorkerReady

LOSS = Place(200, 1, "loss", 656, 32)
ENDED = "its process ended"
SEAT = MagicMock(worker="b/cpu")
SEAT.spec.host = "b"


def said(
    monkeypatch: pytest.MonkeyPatch, cause: str, how: str = "", *, lives: bool = True, place: Place = LOSS
) -> list[str]:
    """The notices. The page is in reach, as where hosts are simulated on one computer; whether the host is, is told."""
    words = LastCall(place=place, how=how)
    monkeypatch.setattr(crashes, "last_call_here", lambda _: words)
    monkeypatch.setattr(Crashes, "_words_there", lambda *_: words if lives else None)
    journal = MagicMock()
    with Crashes(journal) as found:
        found.died(SEAT, MagicMock(), cause)
    return [call.kwargs["text"] for call in journal.write.call_args_list]


def test_a_host_that_is_gone_is_no_fault_of_the_users_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not said(monkeypatch, rpc.HOST_AWAY)
    assert not said(monkeypatch, ENDED, lives=False), "all of its processes ended"


def test_a_process_that_ended_for_an_unknown_reason_is_told_without_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = said(monkeypatch, ENDED)
    assert text == "its process ended while it was in loss in step 200, with the 32 samples from 656 on: b/cpu"
    (text,) = said(monkeypatch, ENDED, place=Place(200, 1, "__getitem__", 17, 1))
    assert text == "its process ended while it was in __getitem__ in step 200, at sample 17: b/cpu"


@pytest.mark.parametrize("cause", [rpc.HOST_AWAY, ENDED])
def test_a_crash_of_its_own_is_the_calls_doing_whatever_its_host_does(
    monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    (text,) = said(monkeypatch, cause, "SIGSEGV", lives=False)
    assert text == "loss crashed its worker in step 200 (SIGSEGV in loss, with the 32 samples from 656 on): b/cpu"


def test_a_worker_that_hangs_while_it_is_measured_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    actor, seat = MagicMock(), MagicMock(worker="b/cpu")
    seat.spec.max_batch = None
    monkeypatch.setattr(rpc, "first_ready", lambda *_: None)
    monkeypatch.setattr(rpc, "get", MagicMock(side_effect=rpc.Timeout("planted")))
    monkeypatch.setattr(Crashes, "_last_call", lambda *_: None)
    hanging = Candidate(seat, actor, WorkerReady(machine="m", cores=1, device="cpu"))
    with pytest.raises(LostAtStart, match="b/cpu stands still"):
        measure([hanging], 8, 0.1, 1.0, Crashes())
    actor.call_in.assert_called_once_with(PING, "ping")
