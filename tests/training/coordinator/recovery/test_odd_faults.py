"""Odd faults, one host's each: the run says whose it was, or does not mind.

Memory that is full on one device is in ``worker/device/test_device_options_in_runs.py``, a dataset that is smaller than
a batch in ``test_failures.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.test_failures import failure

pytestmark = pytest.mark.ray

JOB = """
import os
import time

import torch
from torch import nn


class Job:
    def create_model(self):
        PREPARE
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(60, 6, generator=generator)
        return x, x[:, :3].argmax(1)

    def loss(self, model, batch, step):
        time.sleep(0.002 * len(batch[0]))
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        BODY
        return loss
"""


def job(body: str = "pass", prepare: str = "pass") -> str:
    return JOB.replace("PREPARE", prepare).replace("BODY", body)


@pytest.mark.parametrize("settings", [{}, {"strategy": "allreduce"}], ids=["sync", "ring"])
def test_a_loss_that_is_not_a_number_on_one_host_names_it(launch: Any, settings: dict[str, Any]) -> None:
    source = job("if os.environ.get('TEST_HOST') == 'b' and step > 1: loss = loss * float('nan')")
    event = failure(launch(source, "ab", batch_size=12, num_iterations=1000, **settings))
    assert event["host"] == "b"
    assert "nan" in event["cause"]
    assert "learning rate" in event["hint"]
    assert event["step"] > 0


@pytest.mark.long
def test_a_clock_that_is_an_hour_off_changes_nothing(launch: Any) -> None:
    # Another computer's monotonic clock begins anywhere, too.
    off = (
        "now, tick = time.time, time.monotonic\n"
        "        if os.environ.get('TEST_HOST') == 'b':\n"
        "            time.time, time.monotonic = lambda: now() + 3600, lambda: tick() - 7000"
    )
    run = launch(job(prepare=off), "abc", batch_size=30, num_iterations=60, stream="network")
    assert run.finish() == (0, "")
    assert not run.of_kind("worker_lost")
    assert not run.of_kind("slice_reissued")
    times = [event["time"] for event in run.events()]
    assert times == sorted(times)
    assert times[-1] - times[0] < 600
    steps = run.of_kind("step")
    assert len(steps) == 60
    assert any("b/cpu" in [row["worker"] for row in step["workers"]] for step in steps)
    for step in steps:
        assert 0 < step["seconds"] < 60
        for row in step["workers"]:
            parts = [row[name] for name in ("compute_s", "push_s", "pull_s", "wait_s")]
            assert min(parts) >= 0
            assert max(parts) < 60


def test_a_worker_that_is_lost_before_the_first_step_is_started_again(launch: Any, tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    body = (
        "if os.environ.get('TEST_HOST') == 'b' and not os.path.exists({0!r}): open({0!r}, 'w').close(); os._exit(1)"
    ).format(str(marker))
    run = launch(job(body), "ab", batch_size=12, num_iterations=20)
    assert run.finish() == (0, "")
    (lost,) = run.of_kind("worker_lost")
    assert (lost["host"], lost["step"]) == ("b", 0)
    assert len(run.of_kind("run_started")) == 1
    assert {share["host"] for share in run.of_kind("plan")[0]["shares"]} == {"a", "b"}
