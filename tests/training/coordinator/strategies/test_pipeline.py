"""A pipeline on a real cluster: its weights are those of a plain loop, also when a stage is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from remote_agent.training.config import TrainingConfig
from tests.training import plain

JOB = """
import os
import pathlib

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(24), nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x):
        return x + self.outer(functional.gelu(self.inner(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 24)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.norm = nn.LayerNorm(24)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


class Job:
    def create_model(self):
        return Model()

    def layers(self, model):
        return model.blocks

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss(self, model, batch):
        where = pathlib.Path(FOLDER, os.environ.get("TEST_HOST", "none"))
        draft = where.with_suffix(f".{os.getpid()}")
        draft.write_text(str(os.getpid()))
        draft.replace(where)  # it is read whole
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def create_data(self):
        return torch.randint(0, 50, (120, 11), generator=torch.Generator().manual_seed(5))

    def create_validation_data(self):
        return torch.randint(0, 50, (30, 11), generator=torch.Generator().manual_seed(6))

    def evaluate(self, model):
        return {"by_the_whole": float(self.loss(model, self.create_validation_data()))}
"""


READ_ONCE = JOB.replace(
    """
    def create_data(self):
        return torch""",
    """
    def create_data(self):
        samples, order = self.samples(), SampleOrder(3, 120, 24)
        return iter([samples[index] for step in range(1, 15) for index in order.step(step)])

    def samples(self):
        return torch""",
).replace("import torch\n", "import torch\nfrom remote_agent.training.data.order import SampleOrder\n", 1)
"""The same samples in the same order, out of an iterator."""


@pytest.mark.ray
def test_a_killed_stage_costs_time_and_nothing_else(launch: Any, tmp_path: Path) -> None:
    """Of data that can be read only once, which is the harder case. Others: the simulation."""
    settings: dict[str, Any] = {"num_iterations": 14, "batch_size": 24, "seed": 3, "clip_norm": 0.5}
    source = READ_ONCE.replace("FOLDER", repr(str(tmp_path)))
    run = launch(source, "abc", strategy="pipeline", checkpoint_every=4, **settings)
    run.until("step", 6)
    os.kill(int((tmp_path / "b").read_text()), signal.SIGKILL)
    assert run.finish() == (0, "")
    first, again, *_ = run.of_kind("plan")
    assert first["strategy"] == again["strategy"] == "pipeline"
    assert sum(": block" in reason for reason in first["reasons"]) >= 2
    ends = [0, *(stage["last"] for stage in first["stages"])]
    assert [stage["first"] for stage in first["stages"]] == ends[:-1]
    assert all(stage["seconds"] > 0 and stage["memory"] > 0 for stage in first["stages"])
    assert first["in_flight"] <= first["micro_batches"]
    assert {stage["worker"] for stage in again["stages"]} <= {"a/cpu", "c/cpu"}
    joined = [event["worker"] for event in run.of_kind("worker_joined")]
    assert joined.count("a/cpu") == joined.count("c/cpu") == 1, "their processes stay"
    resumed = run.of_kind("run_resumed")[0]
    assert "was lost" in resumed["cause"]
    assert resumed["host"] == run.of_kind("run_started")[0]["host"] != "b"
    assert resumed["step"] >= 4
    evaluation = run.of_kind("run_finished")[0]["evaluation"]
    assert evaluation["val_loss"] == pytest.approx(evaluation["by_the_whole"], rel=1e-5)
    same = plain.job_of(JOB.replace("FOLDER", repr(str(tmp_path))), tmp_path)
    expected = plain.train(same, TrainingConfig(**settings))
    plain.assert_equal(plain.weights_of(run), expected)


@pytest.mark.ray
def test_adapters_over_four_bits_are_trained_by_servers_too(launch: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_iterations": 6, "batch_size": 24, "seed": 3, "quantize": "nf4", "lora_rank": 2}
    source = JOB.replace("FOLDER", repr(str(tmp_path)))
    run = launch(source, "ab", **settings)
    assert run.finish() == (0, "")
    weights = plain.weights_of(run)
    assert not [name for name in weights if "codes" in name]
    assert any(float(value.norm()) > 0 for name, value in weights.items() if name.endswith("lora_b"))
    plain.assert_equal(weights, plain.train(plain.job_of(source, tmp_path), TrainingConfig(**settings)))
