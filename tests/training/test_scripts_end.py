"""A script that trains: Ctrl-C, what its workers print, and that nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.training.scripts import ENVIRONMENT, SCRIPT_S

pytestmark = pytest.mark.ray

SCRIPT = """
import logging
import time

import torch
from torch import nn
from remote_agent.training import DistributedTrainer, TrainingConfig

log = logging.getLogger(__name__)


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        print("sample", index)
        return torch.full((6,), float(index)), index % 3


class Factory:
    steps = 0

    def create_model(self):
        log.info("a model of one layer")
        return nn.Linear(6, 3)

    def loss(self, model, batch):
        time.sleep(0.05)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


config = TrainingConfig(batch_size=32, num_cpu_workers=1, num_gpu_workers=0, num_iterations=100_000)
result = DistributedTrainer(model_factory=Factory(), data_loader=Points(), config=config).train(folder="run")
print("RESULT", result.stopped, len(result.metrics), result.checkpoint.is_file())
"""


class Script:
    """A running script, in a process group of its own as in a terminal."""

    def __init__(self, folder: Path) -> None:
        (folder / "script.py").write_text(SCRIPT)
        self.folder = folder
        self._err = (folder / "stderr").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=folder,
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            start_new_session=True,
        )

    def until(self, text: str, file: str) -> None:
        """Wait until `text` is in a file of its folder."""
        end = time.monotonic() + SCRIPT_S
        while not (self.folder / file).is_file() or text not in (self.folder / file).read_text():
            assert self.process.poll() is None, self.errors()
            assert time.monotonic() < end
            time.sleep(0.05)

    def interrupt(self) -> None:
        """Ctrl-C, which a terminal sends to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def left(self) -> list[psutil.Process]:
        """Processes of its session that are there still."""
        mine = [each for each in psutil.process_iter() if _session(each.pid) == self.process.pid]
        return psutil.wait_procs(mine, timeout=10)[1]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    started = Script(tmp_path)
    yield started
    if started.process.poll() is None:
        os.killpg(started.process.pid, signal.SIGKILL)


@pytest.mark.long
def test_ctrl_c_ends_a_script_after_its_step_with_what_was_trained(script: Script) -> None:
    script.until('"kind":"step"', "run/events.jsonl")
    script.until("lines left out", "stderr")
    script.interrupt()
    out, _ = script.process.communicate(timeout=SCRIPT_S)
    errors = script.errors()
    assert script.process.returncode == 0
    _, stopped, steps, saved = out.splitlines()[-1].split()
    assert (stopped, saved) == ("True", "True")
    assert 0 < int(steps) < 10_000
    assert "Ctrl-C again to end at once" in errors
    assert f"stopped after {steps} steps: loss " in errors
    assert '"stopped":true' in (script.folder / "run/events.jsonl").read_text().splitlines()[-1]
    assert "Traceback" not in errors
    # What the workers print, and log, and not all of it.
    assert "/cpu] sample " in errors
    assert "/cpu] INFO __main__: a model of one layer" in errors
    assert len(errors.splitlines()) < 300
    assert script.left() == []


@pytest.mark.long
def test_a_second_ctrl_c_ends_it_at_once_and_leaves_nothing(script: Script) -> None:
    script.until('"kind":"step"', "run/events.jsonl")
    script.interrupt()
    script.until("Ctrl-C again", "stderr")
    script.interrupt()
    script.process.communicate(timeout=SCRIPT_S)
    assert script.process.returncode == -signal.SIGINT
    assert script.errors().count("Traceback") <= 1  # the script's own
    assert script.errors().splitlines()[-1] == "KeyboardInterrupt"
    assert script.left() == []


def test_a_script_that_is_killed_leaves_nothing(script: Script) -> None:
    script.until('"kind":"step"', "run/events.jsonl")
    script.process.kill()
    script.process.wait()
    assert [each for each in script.left() if not each.name().endswith("Agent")] == []  # Ray's own end a little later
