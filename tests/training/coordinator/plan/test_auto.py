"""Plans on a real cluster: what is measured for one, and a run that is carried out as ``auto`` chooses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from remote_agent import protocol
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import COMPUTE, EXCHANGE
from remote_agent.training.coordinator.plan import profiles
from tests.training.conftest import RUN_S
from tests.training.loopback import Cluster

JOB = """
import torch
from torch import nn


class Job:
    def create_model(self):
        return nn.Linear(20, 5)

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def create_data(self):
        x = torch.randn(200, 20)
        return x, (x.sum(1) > 0).long()
"""


def test_a_run_is_planned_from_what_was_measured_and_says_why_and_what_it_foresaw(launch: Any) -> None:
    run = launch(JOB, "ab", strategy="auto", batch_size=20, num_iterations=4)
    assert run.finish() == (0, "")
    (plan,) = run.of_kind("plan")
    assert plan["strategy"] in ("sync", "allreduce"), "an exact way"
    assert any(reason.startswith("use ") for reason in plan["reasons"])
    steps = run.of_kind("step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert {step["predicted_s"] for step in steps} == {plan["predicted_step_s"]}
    assert plan["predicted_step_s"] > 0


def test_a_measurement_says_how_far_it_is_and_corrects_by_steps_what_it_keeps(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "plans" / "one"
    folder.mkdir(parents=True)
    (folder / "job.py").write_text(JOB)
    spec = protocol.RunSpec(
        run="one",
        job="job.py:Job",
        cluster="test",
        host="a",
        ray_address=cluster.address,
        node_address="127.0.0.2",
        devices=tuple(protocol.DeviceSpec(host=host, device="cpu", name="test") for host in "ab"),
        server_host="a",
        config={"batch_size": 20, "strategy": "auto"},
        profile="kept",
    )
    (folder / "run.json").write_text(protocol.encode(spec))
    words = [sys.executable, "-m", "remote_agent.training.coordinator.measuring", str(folder)]
    done = subprocess.run(words, env=cluster.environment, capture_output=True, text=True, timeout=RUN_S, check=True)
    *told, last = [line for line in done.stdout.splitlines() if line.startswith(("{", protocol.MEASURING))]
    assert [line.removeprefix(protocol.MEASURING).split()[0] for line in told] == ["starting", "2", "devices", "trying"]
    found = protocol.decode(Survey, last)
    assert found.names == ("a", "b")
    assert all(device.speed > 0 for host in found.hosts for device in host.devices)
    assert {COMPUTE, EXCHANGE} & set(found.ratios), "of steps that were made"
    assert profiles.read(profiles.place(folder, "kept")) == found
