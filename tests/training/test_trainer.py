"""The public API, from a plain script on a Ray of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote_agent.training import DistributedTrainer, TrainingError

pytestmark = pytest.mark.ray
ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, sys
import torch
from torch import nn
from torch.utils.data import Dataset
from remote_agent.training import DistributedTrainer, TrainingConfig, TrainingError


class Points(Dataset):
    def __init__(self):
        self.x = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return self.x[index], (self.x[index].sum() > 0).long()


class Factory:
    def create_model(self):
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))

    def create_optimizer(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=config.learning_rate)


config = TrainingConfig(batch_size=32, learning_rate=0.01, num_gpu_workers=GPUS, num_cpu_workers=2)
trainer = DistributedTrainer(model_factory=Factory(), data_loader=Points(), config=config)
try:
    result = trainer.train(num_iterations=40, resume=RESUME)
except TrainingError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit(1)
model = Factory().create_model()
model.load_state_dict(result.state_dict)
print(json.dumps({
    "losses": [row["loss"] for row in result.metrics], "final": result.final_loss,
    "checkpoint": str(result.checkpoint), "events": str(result.events),
    "batches": int(result.state_dict["1.num_batches_tracked"]),
    "mean": float(result.state_dict["1.running_mean"].abs().sum()),
}))
"""


def run_script(folder: Path, gpus: int, resume: str = "None") -> tuple[int, dict[str, Any]]:
    (folder / "script.py").write_text(SCRIPT.replace("GPUS", str(gpus)).replace("RESUME", resume))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-2000:]
    return done.returncode, json.loads(lines[-1])


def test_a_script_trains_on_a_cluster_that_is_started_for_it(tmp_path: Path) -> None:
    code, result = run_script(tmp_path, gpus=0)
    assert code == 0
    assert len(result["losses"]) == 40
    assert sum(result["losses"][-5:]) < 0.7 * sum(result["losses"][:5])
    assert result["final"] == result["losses"][-1]
    assert (tmp_path / result["checkpoint"]).is_file()
    assert (tmp_path / result["events"]).is_file()
    assert result["batches"] == 40
    assert result["mean"] > 0


def test_asking_for_gpus_that_are_not_there_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    code, result = run_script(tmp_path, gpus=99)
    assert code == 1
    assert "num_gpu_workers=99" in result["error"]


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("{}\n")
    trainer = DistributedTrainer(model_factory=object(), data_loader=[])
    with pytest.raises(TrainingError, match="holds a run already") as error:
        trainer.train(folder=tmp_path)
    assert "resume=" in error.value.hint
    assert (tmp_path / "events.jsonl").read_text() == "{}\n"


def test_what_can_not_be_resumed_is_named_and_the_run_fails_with_an_event(tmp_path: Path) -> None:
    code, result = run_script(tmp_path, gpus=0, resume="'nowhere'")
    assert code == 1
    assert "nowhere" in result["error"]
    (events,) = (tmp_path / "runs").glob("*/events.jsonl")
    assert json.loads(events.read_text().splitlines()[-1])["kind"] == "run_failed"
