"""The public API, from a plain script on a Ray of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remote_agent.training import DistributedTrainer, TrainingError
from tests.training.scripts import run_script

pytestmark = pytest.mark.ray

SCRIPT = """
import json
import ray
import torch
from torch import nn
from torch.utils.data import Dataset
from remote_agent.training import Callback, DistributedTrainer, TrainingConfig, TrainingError


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


class Told(Callback):
    ended = ""

    def on_end(self, event):
        self.ended = event.kind


class Broken:
    def on_step(self, event):
        raise ValueError("no place for it")


told = Told()


def attempt(gpus, **how):
    config = TrainingConfig(
        batch_size=32, learning_rate=0.01, num_gpu_workers=gpus, num_cpu_workers=2, evaluate_every=10,
        keep_best="max:accuracy", log_to="csv",
    )
    trainer = DistributedTrainer(
        model_factory=Factory(), data_loader=Points(), config=config, validation_data=Points(),
        callbacks=[told, Broken()],
    )
    try:
        return trainer.train(num_iterations=40, **how)
    except TrainingError as error:
        return {"error": str(error)}


def accuracy(model):
    x = Points().x
    return float((model(x).argmax(1) == x.sum(1).gt(0)).double().mean())


class Straight:
    def create_model(self):
        return nn.Linear(4, 2)


def forty():
    yield from (Points()[index] for index in range(40))


result = attempt(0)
config = TrainingConfig(batch_size=8, num_iterations=20, num_cpu_workers=2)
short = DistributedTrainer(model_factory=Straight(), data_loader=forty(), config=config).train(folder="short")
ray.init(log_to_driver=False)  # what is running already is used
without_gpus = attempt(99, folder="gpus")
nowhere = attempt(0, folder="resumed", resume="nowhere")
model = Factory().create_model()
model.load_state_dict(result.state_dict)
print(json.dumps({
    "without_gpus": without_gpus,
    "nowhere": nowhere,
    "short": {"steps": len(short.metrics), "reason": short.reason},
    "trained": {
        "losses": [row["loss"] for row in result.metrics], "final": result.final_loss,
        "checkpoint": str(result.checkpoint), "events": str(result.events),
        "evaluations": [[row["step"], row["accuracy"], row["samples"]] for row in result.evaluations],
        "in_rows": [row["step"] for row in result.metrics if "metrics" in row],
        "evaluation": dict(result.evaluation), "best": str(result.best), "repr": repr(result), "told": told.ended,
        "accuracy": accuracy(result.model()), "best_accuracy": accuracy(result.model(best=True)),
        "training": result.model().training,
        "batches": int(result.state_dict["1.num_batches_tracked"]),
        "mean": float(result.state_dict["1.running_mean"].abs().sum()),
    },
}))
"""


@dataclass(frozen=True)
class Script:
    """What a user's script found, and the folder that it ran in."""

    folder: Path
    results: dict[str, Any]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory, stub: Path) -> Script:
    """All attempts are in one script, as most of the time goes into starting it and its Ray."""
    folder = tmp_path_factory.mktemp("script")
    code, results = run_script(folder, SCRIPT, stub)
    assert code == 0
    return Script(folder, results)


def test_a_script_trains_on_a_cluster_that_is_started_for_it(script: Script) -> None:
    result = script.results["trained"]
    assert len(result["losses"]) == 40
    assert sum(result["losses"][-5:]) < 0.7 * sum(result["losses"][:5])
    assert result["final"] == result["losses"][-1]
    assert (script.folder / result["checkpoint"]).is_file()
    assert (script.folder / result["events"]).is_file()
    assert result["batches"] == 40
    assert result["mean"] > 0


def test_a_script_validates_and_gets_the_models_that_the_figures_are_of(script: Script) -> None:
    result = script.results["trained"]
    assert [step for step, _, _ in result["evaluations"]] == result["in_rows"] == [10, 20, 30, 40]
    assert all(samples == 200 for _, _, samples in result["evaluations"])
    accuracies = [accuracy for _, accuracy, _ in result["evaluations"]]
    assert result["accuracy"] == pytest.approx(accuracies[-1])
    assert result["evaluation"]["accuracy"] == accuracies[-1]
    assert result["best_accuracy"] == pytest.approx(max(accuracies))
    assert (script.folder / result["best"]).is_file()
    assert not result["training"]
    assert len(result["repr"]) < 400
    assert "tensor(" not in result["repr"]


def test_a_scripts_callbacks_are_told_and_one_that_raises_is_left_out(script: Script) -> None:
    result = script.results["trained"]
    assert result["told"] == "run_failed"  # that of the last attempt
    events = (script.folder / result["events"]).read_text()
    assert events.count("Broken.on_step is not called any more: ValueError: no place for it") == 1
    steps = (script.folder / result["events"]).with_name("steps.csv").read_text().splitlines()
    assert len(steps) == 41


def test_data_that_is_used_up_is_named(script: Script) -> None:
    assert script.results["short"] == {"steps": 5, "reason": "the data was used up before step 20"}


def test_asking_for_gpus_that_are_not_there_is_an_error_and_not_a_hang(script: Script) -> None:
    assert "num_gpu_workers=99" in script.results["without_gpus"]["error"]


def test_what_can_not_be_resumed_is_named_and_the_run_fails_with_an_event(script: Script) -> None:
    assert "nowhere" in script.results["nowhere"]["error"]
    events = (script.folder / "resumed" / "events.jsonl").read_text().splitlines()
    assert json.loads(events[-1])["kind"] == "run_failed"


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("{}\n")
    trainer = DistributedTrainer(model_factory=object(), data_loader=[])
    with pytest.raises(TrainingError, match="holds a run already") as error:
        trainer.train(folder=tmp_path)
    assert "resume=" in error.value.hint
    assert (tmp_path / "events.jsonl").read_text() == "{}\n"
