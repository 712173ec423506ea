"""When another coordinator follows one that was killed."""

from __future__ import annotations

from pathlib import Path

from remote_agent.training.coordinator.main import MAX_WITHOUT_PROGRESS, _Progress
from remote_agent.training.coordinator.recovery.takeover import takeover_file
from remote_agent.training.data import record


def test_another_follows_while_steps_are_made_and_not_for_ever_where_none_is(tmp_path: Path) -> None:
    may_go_on = _Progress(tmp_path)
    assert not may_go_on(), "nothing was begun"
    (tmp_path / takeover_file.FILE).touch()
    slices = tmp_path / record.FILE
    for length in range(1, 10):
        slices.write_text("x" * length)
        assert may_go_on(), "a step was made since"
    assert [may_go_on() for _ in range(MAX_WITHOUT_PROGRESS)] == [True] * (MAX_WITHOUT_PROGRESS - 1) + [False]


def test_none_follows_where_nothing_can_be_taken_over(tmp_path: Path) -> None:
    (tmp_path / record.FILE).write_text("a step")
    assert not _Progress(tmp_path)()
