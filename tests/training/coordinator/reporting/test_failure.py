"""What a script shows of an error of ``train()`` that it does not catch."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any, NoReturn

import pytest

from remote_agent.training import DistributedTrainer, TrainingError, trainer
from remote_agent.training.coordinator import engine
from remote_agent.training.errors import JobError


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text that Python prints of a run that fails in its 12th step, after a checkpoint of the tenth."""

    def fails(request: Any, journal: Any, *_: Any, **__: Any) -> NoReturn:
        folder = tmp_path / "run" / "checkpoints"
        folder.mkdir()
        weights = "step-00000010.safetensors"
        described = {"step": 10, "position": 80, "weights": weights, "config": {"batch_size": 8, "seed": 0}}
        (folder / "step-00000010.json").write_text(json.dumps(described))
        try:
            raise ValueError("no such label")
        except ValueError as cause:
            error = JobError("loss (job.py:3): ValueError", hint="do", detail="job.py:3 in loss\n    raise", host="nas")
            engine.fail(journal, error, "nas", 12)
            raise error from cause

    monkeypatch.setattr(trainer.cluster, "connect_script", lambda: False)
    monkeypatch.setattr(DistributedTrainer, "_request", lambda *_: None)
    monkeypatch.setattr(trainer.engine, "run", fails)
    with pytest.raises(TrainingError) as caught:
        DistributedTrainer(model_factory=object(), data_loader=[]).train(folder=tmp_path / "run")
    assert caught.value.step == 12
    return "".join(traceback.format_exception(caught.value))


def test_of_the_engine_only_the_call_of_train_is_shown(shown: str) -> None:
    frames = [line for line in shown.splitlines() if line.startswith("  File ")]
    assert len(frames) == 2
    assert frames[0].endswith("in shown")
    assert frames[1].endswith("in train")
    assert shown.count("Traceback") == 1


def test_the_users_lines_the_step_the_checkpoint_and_the_events_are_named(shown: str, tmp_path: Path) -> None:
    said = shown[shown.index("remote_agent.errors.JobError") :].splitlines()
    assert said == [
        "remote_agent.errors.JobError: nas: loss (job.py:3): ValueError (do)",
        "  job.py:3 in loss",
        "      raise",
        "It happened in step 12.",
        f"The newest checkpoint is that of step 10: train(resume='{tmp_path}/run') goes on from there.",
        f"All that happened in the run is in {tmp_path}/run/events.jsonl.",
    ]
