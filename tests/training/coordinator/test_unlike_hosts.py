"""A job that is another one on one host is refused before the first step, by names and values; on a real cluster."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from remote_agent.training.config import TrainingConfig
from remote_agent.training.shared.audit import Cause
from tests.training import plain

pytestmark = pytest.mark.ray

JOB = """
import os
import pathlib
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional

HOST = lambda: os.environ.get("TEST_HOST", "")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        x, y = torch.randn(6, generator=torch.Generator().manual_seed(index)), index % 3
        DATA
        return x, y


def halved(x):
    if HOST() == "b" and x.requires_grad:
        x.register_hook(lambda given: given / 2)
    return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        MODEL
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(FORWARD)


class Job:
    def create_model(self):
        return Net()

    def layers(self, model):
        return [model.first, model.last]

    def create_data(self):
        return Data()

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=RATE)

    def loss(self, model, batch):
        LOSS
        return functional.cross_entropy(model(batch[0]), batch[1])
"""

USUAL = {"DATA": "pass", "MODEL": "pass", "FORWARD": "torch.tanh(self.first(x))", "RATE": "0.1", "LOSS": "pass"}
CAUSES = {Cause.DATA_DIFFERS: "read different samples", Cause.MACHINES_DIFFER: "compute different numbers"}
DRAWN = "torch.tensor(np.random.default_rng().normal(size=(6, 6))).float()"
"""Each process draws its own."""

SETTINGS: dict[str, Any] = {"batch_size": 12, "num_iterations": 3, "stream": "network"}


def job(**parts: str) -> str:
    source = JOB
    for name, text in (USUAL | parts).items():
        source = source.replace(name, text)
    return source


def refused(run: Any) -> dict[str, Any]:
    code, errors = run.finish()
    assert code == 1, errors
    assert "Traceback" not in errors
    assert not run.of_kind("step")
    event: dict[str, Any] = run.events()[-1]
    assert event["kind"] == "run_failed"
    return event


def trained(run: Any) -> None:
    code, errors = run.finish()
    assert (code, errors) == (0, ""), run.events()[-1]
    assert run.events()[-1]["kind"] == "run_finished"


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({"DATA": "y = (y + (HOST() == 'b')) % 3"}, Cause.DATA_DIFFERS),
        (
            {
                "MODEL": f"self.register_buffer('drawn', {DRAWN}, persistent=False)",
                "FORWARD": "self.first(x @ self.drawn)",
            },
            Cause.MACHINES_DIFFER,
        ),
        ({"FORWARD": "torch.tanh(halved(self.first(x)))"}, Cause.MACHINES_DIFFER),
        (
            {"LOSS": "return (1 + 0.01 * (HOST() == 'b')) * functional.cross_entropy(model(batch[0]), batch[1])"},
            Cause.MACHINES_DIFFER,
        ),
    ],
    ids=["data", "drawn", "backward", "loss"],
)
def test_a_host_that_computes_something_else_is_refused_by_name(
    launch: Any, parts: dict[str, str], cause: Cause
) -> None:
    event = refused(launch(job(**parts), "ab", **SETTINGS))
    assert CAUSES[cause] in event["cause"]
    assert "/cpu and " in event["cause"]
    assert event["hint"]


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "sync", "shards": 2},
        {"strategy": "allreduce"},
        {"strategy": "local_sgd", "local_steps": 1},
        {"strategy": "pipeline"},
    ],
    ids=lambda settings: str(settings["strategy"]),
)
def test_the_learning_rate_is_the_heads_wherever_the_step_is_made(
    launch: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    hosts = ("a", "b") if settings["strategy"] == "pipeline" else ("b",)  # which one gets layers, the planner decides
    run = launch(job(RATE=f"0.2 if HOST() in {hosts} else 0.1"), "ab", **SETTINGS, **settings)
    trained(run)
    config = TrainingConfig(batch_size=SETTINGS["batch_size"], num_iterations=SETTINGS["num_iterations"])
    plain.assert_equal(plain.weights_of(run), plain.train(plain.job_of(job(), tmp_path), config))


@pytest.mark.parametrize(
    "parts",
    [  # what is random, and what is a little different; each by itself: worker/device/test_audit
        {
            "DATA": "x = x + torch.randn(6) * random.random() * np.random.rand()",
            "FORWARD": "functional.dropout(torch.tanh(self.first(x)), 0.5, self.training)",
        },
        {
            "DATA": "x = x * (1 + 1e-6 * (HOST() == 'b'))",
            "MODEL": "self.cores = os.cpu_count() * (2 if HOST() == 'b' else 1); self.place = HOST()"
            "; self.scale = float(len(HOST()))",
            "LOSS": "with torch.autocast('cpu', torch.bfloat16, enabled=HOST() == 'b'): return"
            " functional.cross_entropy(model(batch[0]), batch[1])",
        },
    ],
)
def test_a_usual_job_is_the_same_on_all_hosts(launch: Any, parts: dict[str, str]) -> None:
    trained(launch(job(**parts), "ab", limits={"b": 3}, **SETTINGS))


def test_a_worker_that_comes_back_with_other_data_is_left_out_by_name_and_the_run_goes_on(
    launch: Any, tmp_path: Path
) -> None:
    begins = f"draft = pathlib.Path({str(tmp_path)!r}, str(os.getpid())); draft.write_text(draft.name)"
    begins += "; draft.replace(draft.with_name(HOST()))"
    changed = f"y = (y + (HOST() == 'b' and os.path.exists({str(tmp_path / 'new')!r}))) % 3"
    run = launch(job(DATA=changed, LOSS=begins), "ab", **SETTINGS | {"num_iterations": 100_000})
    run.until("step", 5)
    (tmp_path / "new").touch()
    os.kill(int((tmp_path / "b").read_text()), signal.SIGKILL)
    end = time.monotonic() + 60
    while not (said := [event for event in run.of_kind("worker_lost") if CAUSES[Cause.DATA_DIFFERS] in event["cause"]]):
        assert run.process.poll() is None, run.finish()
        assert time.monotonic() < end, run.of_kind("worker_lost")
        time.sleep(0.05)
    assert said[0]["worker"] == "b/cpu"
    run.until("step", len(run.of_kind("step")) + 5)
    run.process.send_signal(signal.SIGTERM)
    trained(run)
    assert {worker["worker"] for worker in run.of_kind("step")[-1]["workers"]} == {"a/cpu"}
