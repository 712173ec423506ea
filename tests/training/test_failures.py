"""Whatever goes wrong, the run ends with one clear event, exit code 1, and no traceback."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from remote_agent.training.checkpoint import checkpoint

pytestmark = pytest.mark.ray

JOB = """
import os
import time

import torch
from torch import nn


class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def create_data(self):
        return torch.randn(60, 6), torch.randint(3, (60,))

    def loss(self, model, batch, step):
        time.sleep(0.002 * len(batch[0]))  # samples that cost nothing are dealt out by noise: b might get none
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        BODY
        return loss
"""


def job(body: str = "pass") -> str:
    return JOB.replace("BODY", body)


def failure(run: Any) -> dict[str, Any]:
    """The run's last event, once it has failed as it should."""
    code, errors = run.finish()
    assert code == 1
    assert "Traceback" not in errors
    assert len(errors.splitlines()) <= 1, errors
    events = run.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["kind"] for event in events if event["kind"] in ("run_finished", "run_failed")] == ["run_failed"]
    assert events[-1]["kind"] == "run_failed"
    assert events[-1]["hint"]
    return events[-1]


def test_an_exception_in_the_loss_is_shown_with_its_host_and_last_lines(launch: Any) -> None:
    body = "if os.environ.get('TEST_HOST') == 'b' and step > 1: raise KeyError('no such column')"
    event = failure(launch(job(body), "ab", batch_size=12))
    assert event["host"] == "b"
    assert "KeyError" in event["cause"]
    assert "no such column" in event["detail"]
    assert event["step"] >= 1


def test_a_job_file_that_cannot_be_imported_is_named(launch: Any) -> None:
    event = failure(launch("\nimport no_such_module\n", "a"))
    assert "no_such_module" in event["cause"]


def test_a_device_that_is_not_there_is_named_with_those_that_are(launch: Any) -> None:
    event = failure(launch(job(), "b", device="cuda:3", batch_size=12))
    assert event["host"] == "b"
    assert "cuda:3" in event["cause"]
    assert "cpu" in event["cause"]


def test_a_device_that_is_not_there_is_left_out_with_its_reason_where_others_are(launch: Any) -> None:
    run = launch(job(), "ab", devices={"b": "cuda:3"}, batch_size=12, num_iterations=2)
    code, errors = run.finish()
    assert (code, run.events()[-1]["kind"]) == (0, "run_finished"), errors
    assert {worker["worker"] for step in run.of_kind("step") for worker in step["workers"]} == {"a/cpu"}
    plans = run.of_kind("plan")
    (why,) = [reason for reason in plans[0]["reasons"] if "cuda:3" in reason]
    assert why.startswith("b (cuda:3): left out: there is no device 'cuda:3' here; torch ")


def test_a_head_that_cannot_be_reached_is_named(launch: Any) -> None:
    event = failure(launch(job(), "a", address="127.0.0.2:9"))
    assert "127.0.0.2:9" in event["cause"]


def test_an_optimizer_that_ends_its_process_is_named(launch: Any) -> None:
    source = job() + (
        "\n    def create_optimizer(self, model, config):"
        "\n        class Dying(torch.optim.SGD):"
        "\n            def step(self, closure=None):"
        "\n                os._exit(1)"
        "\n        return Dying(model.parameters(), lr=0.1)\n"
    )
    run = launch(source, "a", server="c", batch_size=12)
    event = failure(run)
    assert event["cause"].startswith("the optimizer's step crashed its worker twice in step 1")
    assert "os._exit(1)" in event["cause"]
    assert event["host"] == "a"


def test_sigterm_ends_the_run_early_with_a_checkpoint(launch: Any) -> None:
    run = launch(job("time.sleep(0.05)"), "a", batch_size=12, num_iterations=100_000, checkpoint_every=5)
    run.until("step", 6)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.finish() == (0, "")
    (finished,) = run.of_kind("run_finished")
    assert finished["stopped"] is True
    assert finished["steps"] == len(run.of_kind("step")) < 1000
    assert finished["samples"] == 12 * finished["steps"]
    assert checkpoint.load(Path(finished["checkpoint"])).keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert run.of_kind("checkpoint_saved")[0]["step"] == 5
