"""Without any setting a run has a checkpoint soon, then from time to time, for next to nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remote_agent.training.checkpoint.saver import Saved
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.members import MembershipRecord
from remote_agent.training.coordinator.recovery.checkpoint_timer import (
    FIRST_S,
    MAX_BYTES_S,
    MAX_STALLED_SPLIT,
    MAX_WRITING,
    CheckpointTimer,
)
from remote_agent.training.coordinator.session import Session

STEP_S = 0.1


class Run:
    """Steps of a run that takes no time: its clock is moved by hand."""

    def __init__(self, stall_s: float = 0.0, size: int = 0, seconds: float = 0.0, **config: Any) -> None:
        self.now = 0.0
        self.session = Session(
            config=TrainingConfig(**config),
            membership=MembershipRecord([]),
            servers=(),
            order=cast("Any", None),
            source=cast("Any", None),
            joining=cast("Any", None),
            payload_bytes=0,
            buffer_names=(),
            journal=cast("Any", None),
            stopping=lambda: False,
        )
        self.saver = SimpleNamespace(newest=None, is_writing=False)
        self.timer = CheckpointTimer(self.session, cast("Any", self.saver), clock=lambda: self.now)
        self.stall_s, self.saved = stall_s, Saved(step=1, path=Path(), size=size, seconds=seconds)
        self.step, self.kept = 0, list[float]()

    def train(self, seconds: float) -> list[float]:
        """When checkpoints were made, in seconds from the beginning."""
        end = self.now + seconds
        while self.now < end:
            self.step, self.now = self.step + 1, self.now + STEP_S
            stall_s = None
            if self.session.is_checkpoint(self.step):
                stall_s, self.saver.newest = self.stall_s, self.saved
                self.kept.append(self.now)
            report = SimpleNamespace(step=self.step, seconds=STEP_S)
            self.timer.after(self.session, cast("Any", report), stall_s)
        return self.kept


def test_the_first_comes_soon_and_the_others_as_often_as_was_said() -> None:
    kept = Run(checkpoint_seconds=20.0).train(100.0)
    assert kept == pytest.approx([FIRST_S + n * 20.0 for n in range(5)], abs=5 * 2 * STEP_S)
    assert Run(checkpoint_seconds=2.0).train(9.0) == pytest.approx([2.0, 4.0, 6.0, 8.0], abs=8 * STEP_S)
    assert Run(checkpoint_seconds=0.45).train(0.75) == pytest.approx([0.6]), "the step that it is set after ends first"


def test_they_are_rarer_where_they_cost_more() -> None:
    assert len(Run().train(1000.0)) > 180
    for run in (Run(size=int(100 * MAX_BYTES_S)), Run(seconds=100 * MAX_WRITING)):
        assert run.train(1000.0) == pytest.approx([FIRST_S + n * 100.0 for n in range(10)], abs=10 * 2 * STEP_S)
    # That training waited for the first is put down to chance, in the pace as of other copies.
    second = FIRST_S + TrainingConfig().checkpoint_seconds
    kept = Run(stall_s=1.0).train(1000.0)
    assert kept == pytest.approx([FIRST_S, *(second + n * 100.0 for n in range(10))], abs=11 * 2 * STEP_S)


@pytest.mark.parametrize("strategy", ["sync", "local_sgd", "pipeline"])
def test_they_come_often_since_a_lost_head_or_stage_costs_the_steps_since(strategy: str) -> None:
    kept = Run(strategy=strategy).train(100.0)
    assert kept == pytest.approx(
        [FIRST_S + n * TrainingConfig().checkpoint_seconds for n in range(len(kept))], abs=20 * 2 * STEP_S
    )
    assert len(kept) >= 18


def test_a_pipeline_may_wait_longer_for_them() -> None:
    rarer = Run(strategy="pipeline", stall_s=1.0).train(1000.0)
    assert rarer[-1] - rarer[-2] == pytest.approx(1.0 / MAX_STALLED_SPLIT, abs=2 * STEP_S)


def test_none_is_due_while_one_is_written_or_where_the_user_said_otherwise() -> None:
    run = Run()
    run.saver.is_writing = True
    assert run.train(100.0) == []
    run.saver.is_writing = False
    assert len(run.train(1.0)) == 1
    assert Run(checkpoint_seconds=0.0).train(200.0) == []
    assert Run(checkpoint_every=700).train(200.0) == pytest.approx([70.0, 140.0])
    assert Run(checkpoint_every=1, checkpoint_seconds=1.0).train(2.0) == pytest.approx([n / 10 for n in range(1, 21)])


def test_a_round_that_is_issued_ahead_is_not_kept() -> None:
    run = Run(strategy="local_sgd", overlap=True)
    run.train(FIRST_S + STEP_S / 2)
    assert run.session.keeping.checkpoint_due == run.step + 3
