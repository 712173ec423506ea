"""A run does not start over for a better plan where that would lose what its optimizer remembers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote_agent.planning import self_check
from remote_agent.planning.survey import Survey
from remote_agent.training.checkpoint.saver import Saved, Saver
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan_check import PlanCheck

BETTER: Any = object()


@pytest.mark.parametrize(("missing", "found"), [(None, BETTER), ("", BETTER), ("it remembers a Projector", None)])
def test_a_plan_stays_where_the_optimizer_would_start_afresh(
    missing: str | None, found: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(self_check, "better", lambda *_: BETTER)
    survey = Survey.__new__(Survey)
    monkeypatch.setattr(Survey, "now", lambda *_, **__: survey)
    monkeypatch.setattr(Survey, "of", lambda *_: survey)
    object.__setattr__(survey, "hosts", ())
    monkeypatch.setattr(PlanCheck, "_gone", lambda *_: frozenset())
    session: Any = SimpleNamespace(
        config=TrainingConfig(strategy="allreduce"),
        plan_basis=SimpleNamespace(survey=survey, replanned=0, pause_s=1.0, limits=None),
        membership=SimpleNamespace(draining=frozenset()),
        source=SimpleNamespace(size=10),
    )
    with Saver(tmp_path, 1, {}) as saver:
        if missing is not None:
            saver.newest = Saved(step=1, path=tmp_path, size=1, seconds=0.1, missing=missing)
        check = PlanCheck(session, saver)
        assert check._better(session, survey, BETTER, 100.0) is found


def test_what_was_planned_stays_where_what_is_predicted_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times = iter((0.02, 0.1))
    monkeypatch.setattr(PlanCheck, "_predicted", lambda *_: SimpleNamespace(seconds=next(times)))
    session: Any = SimpleNamespace(
        config=TrainingConfig(strategy="allreduce"),
        plan_basis=SimpleNamespace(survey=Survey.__new__(Survey)),
        members=[SimpleNamespace(name="a"), SimpleNamespace(name="b")],
    )
    with Saver(tmp_path, 1, {}) as saver:
        check = PlanCheck(session, saver)
        assert (check.predicted_s(session), check.planned_s) == (0.02, 0.02)
        session.members.pop()
        assert (check.predicted_s(session), check.planned_s) == (0.1, 0.02)
