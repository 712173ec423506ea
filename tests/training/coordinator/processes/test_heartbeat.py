"""How long a worker may be silent follows from how it answered before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from remote_agent.training.coordinator.processes.heartbeat import MIN_WAITS, Beat, patience
from remote_agent.training.deadlines import SILENT_FACTOR, SILENT_S, SILENT_SOONEST_S

waits = some.floats(0.001, SILENT_S)


def test_who_always_answers_at_once_is_silent_sooner_than_who_is_not_known_yet() -> None:
    assert patience([0.02] * MIN_WAITS) == SILENT_SOONEST_S
    assert patience([0.02] * (MIN_WAITS - 1)) == SILENT_S
    assert Beat(silent_s=1.0, patience_s=patience([0.02] * MIN_WAITS)).is_silent
    assert not Beat(silent_s=1.0).is_silent


@given(some.lists(waits, min_size=MIN_WAITS, max_size=200))
def test_one_late_answer_is_enough_to_be_given_more_time_up_to_a_limit(answered: list[float]) -> None:
    found = patience(answered)
    assert SILENT_SOONEST_S <= found <= SILENT_S
    assert found == SILENT_S or found >= SILENT_FACTOR * max(answered)
    assert patience([*answered, SILENT_S]) == SILENT_S
