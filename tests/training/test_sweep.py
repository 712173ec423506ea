"""A sweep on a real cluster: it finds a planted optimum, on all hosts, one of which is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from remote_agent.protocol import JOB_ARCHIVE, DeviceSpec, RunSpec, SweepResult, decode, encode
from remote_agent.runs import list_runs
from remote_agent.search import Parameter, Search
from tests.training.loopback import Cluster

SWEEP_S = 200.0

JOB = """
import os
import time
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Mine:
    place: float = 0.0


class Job:
    settings = Mine()

    def create_model(self):
        return nn.Linear(1, 1)

    def create_data(self):
        return torch.zeros(36, 1), torch.zeros(36, 1)

    def loss(self, model, batch):
        assert self.settings.place > 0.1, "planted: this one fails by itself"
        if os.environ["TEST_HOST"] == "z":
            time.sleep(2)  # it is killed meanwhile
        return ((model(batch[0]) - batch[1]) ** 2).mean() * 0 + abs(self.settings.place - 0.35)
"""


@pytest.mark.long
@pytest.mark.ray
def test_a_sweep_finds_a_planted_optimum_though_a_host_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start("z", "127.0.0.9")
    cluster.wait()
    place = tmp_path / "runs" / "sweep"
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / JOB_ARCHIVE, "w") as archive:
        archive.writestr("code/job.py", JOB)
    search = Search(parameters=(Parameter(name="place", low=0.0, high=0.5),), trials=5, seed=2)
    spec = RunSpec(
        run="sweep",
        job="job.py:Job",
        cluster="test",
        host="a",
        server_host="a",
        ray_address=cluster.address,
        node_address="127.0.0.2",
        devices=tuple(DeviceSpec(host=host, device="cpu", name="test") for host in "abz"),
        config={"num_iterations": 6, "batch_size": 4, "measure_seconds": 0.1},
        script=True,
        search=search,
    )
    (place / "run.json").write_text(encode(spec))
    words = [sys.executable, "-m", "remote_agent.sweep", str(place)]
    process = subprocess.Popen(words, env=cluster.environment, stdin=subprocess.DEVNULL)
    log, end = place / "script.log", time.monotonic() + SWEEP_S

    def said() -> str:
        return log.read_text() if log.exists() else ""

    def trials_on_z() -> list[Path]:
        return [path for path in place.glob("trials/*/events.jsonl") if '"host":"z"' in path.read_text()]

    try:
        while not any('"kind":"step"' in path.read_text() for path in trials_on_z()):
            assert process.poll() is None, said()
            assert time.monotonic() < end, said()
            time.sleep(0.05)
        node = cluster.nodes.pop("z")
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()
        assert process.wait(SWEEP_S) == 0, said()
    finally:
        process.terminate()
        process.wait()
    done = subprocess.run(
        [sys.executable, "-m", "remote_agent.sweep", "--folder", str(tmp_path), "--result", "sweep"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    result = decode(SweepResult, done.stdout)
    assert result.finished
    assert "it is made again elsewhere" in said()
    assert {trial.host for trial in result.trials} == {"a", "b"}, "the killed host has none, and no other was left out"
    best = result.trials[0]
    figures = [abs(float(each["place"]) - 0.35) for each in search.values() if float(each["place"]) > 0.1]
    assert best.figure == pytest.approx(abs(float(best.settings["place"]) - 0.35), abs=1e-5)
    assert best.figure == pytest.approx(min(figures), abs=1e-5)
    assert (best.steps, best.stopped) == (6, False)
    (failed,) = [trial for trial in result.trials if trial.cause]
    assert float(failed.settings["place"]) < 0.1
    assert "planted: this one fails by itself" in failed.cause
    (summary,) = list_runs(tmp_path).runs
    assert (summary.state, summary.step, summary.loss) == ("finished", 5, pytest.approx(best.figure))
