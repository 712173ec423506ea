"""A disk that fills up while checkpoints are written: the run ends with a clear event, and can go on from the last."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_agent.training.checkpoint import checkpoint
from tests.training.test_failures import failure

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting a small disk needs root"),
]

JOB = """
import torch
from torch import nn


class Job:
    def create_model(self):
        return nn.Linear(300, 300)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        return torch.randn(60, 300, generator=generator), torch.randint(300, (60,), generator=generator)

    def create_optimizer(self, model, config):
        return torch.optim.AdamW(model.parameters(), lr=0.01)
"""

SMALL, LARGE = "3m", "30m"
"""Room for two checkpoints of 1.1 MB each and no third; and for many."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk where the checkpoints of the first run of a test go to."""
    place = tmp_path / "run0" / checkpoint.FOLDER
    place.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no small disk can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_is_full_at_a_checkpoint_is_named_and_the_last_good_ones_are_kept(launch: Any, disk: Path) -> None:
    settings = {"batch_size": 12, "num_iterations": 30, "checkpoint_every": 5, "measure_seconds": 0.1}
    run = launch(JOB, "ab", **settings)
    event = failure(run)
    assert "can't save the checkpoint of step 15" in event["cause"]
    assert "no space left" in event["cause"].lower()
    assert "free space" in event["hint"]
    assert event["host"] == "a"
    assert [saved["step"] for saved in run.of_kind("checkpoint_saved")] == [5, 10]
    kept = sorted(path.name for path in disk.iterdir())
    assert not [name for name in kept if name.endswith(".part")]
    assert [name for name in kept if name.endswith(".json")] == ["step-00000005.json", "step-00000010.json"]
    for document in disk.glob("*.json"):
        assert checkpoint.find(document).training_state().optimizer
    subprocess.run(["mount", "-o", f"remount,size={LARGE}", str(disk)], check=True)
    resumed = launch(JOB, "ab", resume=run, **settings)
    assert resumed.finish() == (0, "")
    assert resumed.of_kind("run_resumed")[0]["step"] == 10
    assert resumed.of_kind("run_finished")[0]["steps"] == 30
