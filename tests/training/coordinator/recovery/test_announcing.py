"""What a run that goes back tells of what it lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remote_agent.training.checkpoint.checkpoint import Checkpoint
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.journal import Journal
from remote_agent.training.coordinator.recovery.reports import report_sent_back
from remote_agent.training.coordinator.request import Request
from remote_agent.training.errors import WeightsGone


@pytest.mark.parametrize(
    ("missing", "notes"), [("", ()), ("Soap keeps a list", ("the optimizer starts afresh: Soap keeps a list",))]
)
def test_an_optimizer_that_starts_afresh_is_told_also_when_no_user_asked(missing: str, notes: tuple[str, ...]) -> None:
    written: list[dict[str, Any]] = []
    journal = cast("Journal", SimpleNamespace(write=lambda _, **fields: written.append(fields)))
    request = cast("Request", SimpleNamespace(host="a", config=TrainingConfig()))
    found = Checkpoint(path=Path("step"), step=40, position=80, seed=0, config={}, missing=missing)
    report_sent_back(journal, request, found, WeightsGone("the weights are gone"))
    assert [each["notes"] for each in written] == [notes]
