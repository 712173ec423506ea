"""Code of the user's that kills its process, or does not return: the run ends, and says which sample and which line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.test_failures import failure

pytestmark = pytest.mark.ray

JOB = """
import ctypes
import os
import signal
import sys
import time

import torch
from torch import nn


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, index):
        if index == BAD:
            spoil()
        time.sleep(0.001)
        return torch.full((6,), float(index)), index % 3


def spoil():
    DEED


class Job:
    def create_model(self):
        return nn.Linear(6, 3)

    def create_data(self):
        return Points()

    def loss(self, model, batch):
        IN_LOSS
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


def job(deed: str = "pass", bad: int = 417, in_loss: str = "pass") -> str:
    """Sample 417 is none of those that are measured."""
    return JOB.replace("DEED", deed).replace("BAD", str(bad)).replace("IN_LOSS", in_loss)


SEGFAULT = "ctypes.string_at(0)"
ENDLESS = "while True: time.sleep(0.1)"
ALL = {"batch_size": 30, "num_iterations": 40}
"""Two epochs."""


def test_a_sample_that_kills_two_workers_ends_the_run_and_is_named(launch: Any) -> None:
    run = launch(job(SEGFAULT), "ab", **ALL)
    event = failure(run)
    assert event["cause"].startswith("sample 417 crashed its worker twice in step ")
    assert "SIGSEGV in spoil, job.py:" in event["cause"]
    assert "a/cpu" in event["cause"]
    assert "b/cpu" in event["cause"]
    assert SEGFAULT in event["detail"]
    assert "sample 417" in event["hint"]
    assert run.of_kind("notice")[0]["text"].startswith("sample 417 crashed its worker in step ")


DEVICE_LOST = "torch.AcceleratorError('CUDA error: unspecified launch failure')"


def test_a_device_that_fails_costs_the_run_its_worker_for_a_moment(launch: Any, tmp_path: Path) -> None:
    noted = tmp_path / "failed"
    in_loss = f"""if os.environ.get("TEST_HOST") == "b" and not os.path.exists({str(noted)!r}) and BAD in batch[0]:
            open({str(noted)!r}, "w")
            raise {DEVICE_LOST}"""
    run = launch(job(in_loss=in_loss.replace("BAD", "417")), "b", **ALL)
    assert run.finish()[0] == 0
    (notice,) = [each["text"] for each in run.of_kind("notice") if "crashed" in each["text"]]
    assert "CUDA error: unspecified launch failure in loss" in notice
    assert len(run.of_kind("worker_lost")) == 1


@pytest.mark.long
def test_a_sample_that_never_returns_is_named_with_its_line(launch: Any) -> None:
    event = failure(launch(job(ENDLESS), "ab", **ALL, slice_deadline_s=4))
    assert event["cause"].startswith("sample 417 held its worker up twice in step ")
    assert "from spoil, job.py:" in event["cause"]
    assert ENDLESS in event["detail"]
    assert "slice_deadline_s" in event["hint"]


def test_a_loss_that_calls_exit_fails_as_one_that_raises(launch: Any) -> None:
    event = failure(launch(job(in_loss="sys.exit(3)"), "a", **ALL))
    assert "loss (job.py:" in event["cause"]
    assert event["cause"].endswith("it called sys.exit(3)")
    assert event["step"] == 0


def test_data_whose_making_ends_the_coordinator_is_an_error_of_the_job(launch: Any) -> None:
    source = job("ctypes.string_at(0)").replace("return Points()", "spoil()")
    run = launch(source, "a", **ALL)
    assert run.finish()[0] == 1
    (event,) = run.of_kind("run_failed")
    assert event["cause"].startswith("create_data ended the coordinator's process (SIGSEGV in spoil, job.py:")
    assert "ctypes.string_at(0)" in event["detail"]
