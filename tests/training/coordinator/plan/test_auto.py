"""Plans on a real cluster: what is measured for one, and a run that is carried out as ``auto`` chooses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote_agent import protocol
from remote_agent.planning.pipeline import planned
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import COMPUTE, EXCHANGE
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan import profiles
from remote_agent.training.coordinator.trial import CERTAIN_STEPS, SKIPPED
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


def _measured(
    cluster: Cluster, tmp_path: Path, job: str, hosts: str, *, name: str = "Job", **config: object
) -> tuple[list[str], Survey]:
    """What is told while a job is measured, and what that comes to, which is kept as well."""
    folder = tmp_path / "plans" / "one"
    folder.mkdir(parents=True)
    (folder / "job.py").write_text(job)
    spec = protocol.RunSpec(
        run="one",
        job=f"job.py:{name}",
        cluster="test",
        host="a",
        ray_address=cluster.address,
        node_address="127.0.0.2",
        devices=tuple(protocol.DeviceSpec(host=host, device="cpu", name="test") for host in hosts),
        server_host="a",
        config=config,
        profile="kept",
    )
    (folder / "run.json").write_text(protocol.encode(spec))
    words = [sys.executable, "-m", "remote_agent.training.coordinator.measuring", str(folder)]
    done = subprocess.run(words, env=cluster.environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    *told, last = [line for line in done.stdout.splitlines() if line.startswith(("{", protocol.MEASURING))]
    found = protocol.decode(Survey, last)
    assert profiles.read(profiles.place(folder, "kept")) == found
    return [line.removeprefix(protocol.MEASURING) for line in told], found


def test_a_measurement_says_how_far_it_is_and_corrects_by_steps_what_it_keeps(cluster: Cluster, tmp_path: Path) -> None:
    told, found = _measured(cluster, tmp_path, JOB, "ab", batch_size=20, strategy="auto")
    assert [line.split()[0] for line in told] == ["starting", "2", "devices", "trying"]
    assert found.names == ("a", "b")
    assert all(device.speed > 0 for host in found.hosts for device in host.devices)
    assert {COMPUTE, EXCHANGE} & set(found.ratios), "of steps that were made"


def test_the_loss_is_not_looked_at_once_more_in_steps_that_are_tried_for_a_plan(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Such a look takes time in a run's first steps, and would count as time of all steps."""
    calls = tmp_path / "calls"
    job = f"""
from pathlib import Path
{JOB}
FIRST = torch.full((5, 20), 0.01)


def told(what):
    with Path({str(calls)!r}).open("a") as file:
        file.write(what + chr(10))


class Told(Job):
    def create_model(self):
        model = super().create_model()
        model.weight.data = FIRST.clone()
        return model

    def loss(self, model, batch):
        found = super().loss(model, batch)
        if bool((model.weight != FIRST).any()):  # a step was made
            told("forward")
            found.register_hook(lambda _: told("backward"))
        return found
"""
    narrated, _ = _measured(cluster, tmp_path, job, "ab", name="Told", batch_size=20, strategy="auto")
    assert any(line.startswith("trying") for line in narrated)
    steps = re.split("f{3,}(?=f)", "".join(line[0] for line in calls.read_text().split()))[-1]  # after the measurement
    assert len(steps) >= 2 * 2 * (SKIPPED + CERTAIN_STEPS), "two workers, forward and backward"
    assert abs(steps.count("f") - steps.count("b")) <= 2, steps


BLOCKS = 16


@pytest.mark.long
def test_nothing_is_opened_for_a_plan_whose_steps_take_too_long_to_be_tried(cluster: Cluster, tmp_path: Path) -> None:
    slow = JOB.replace("batch[0]), batch[1])", "batch[0]), batch[1]) + 0 * (time.sleep(0.03 * len(batch[0])) or 0)")
    told, _ = _measured(cluster, tmp_path, f"import time\n{slow}", "ab", batch_size=60, strategy="auto")
    assert [line.split()[0] for line in told] == ["starting", "2", "devices"]
    events = (tmp_path / "plans/one/events.jsonl").read_text().splitlines()
    assert {json.loads(line)["kind"] for line in events} == {"run_started", "worker_joined"}


TOO_LARGE = """
import os, re, resource
from pathlib import Path

import torch
from torch import nn

WIDTH, BLOCKS = 1448, 16
FREE = {}


class Job:
    def create_model(self):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS)))
        size = 4 * WIDTH * WIDTH * BLOCKS
        free = FREE.get(os.environ.get("TEST_HOST", ""), 0)
        if free and "coordinate" not in Path("/proc/self/cmdline").read_text():
            (taken,) = re.findall(r"^VmData:\\s+(\\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
            most = int(1024 * int(taken) + free * size)
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
        return model

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(self, model, batch):
        return (model(batch) - batch).square().mean()

    def create_data(self):
        return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))
"""


def _with_free(free: dict[str, float]) -> str:
    """The job where a process on each of these hosts may take so many times its weights, beside them."""
    return TOO_LARGE.replace("FREE = {}", f"FREE = {free}")


def test_a_device_that_has_no_room_for_the_model_is_left_out_and_named(launch: Any) -> None:
    run = launch(_with_free({"c": 2.6}), "ac", strategy="auto", batch_size=16, num_iterations=3)
    assert run.finish() == (0, "")
    (plan,) = run.of_kind("plan")
    assert "c" not in {share["host"] for share in plan["shares"]}
    assert plan["left_out"]["c"].startswith("the model does not fit on cpu")
    assert any(
        re.match(r"c \(cpu\): left out: the model does not fit on cpu: .* GB more", why) for why in plan["reasons"]
    )
    assert len(run.of_kind("step")) == 3


def test_a_model_that_fits_on_no_device_is_cut_by_its_layers(launch: Any) -> None:
    settings = {"batch_size": 16, "num_iterations": 3, "checkpoint_every": 1}  # which take memory, too
    run = launch(_with_free(dict.fromkeys("abc", 2.6)), "abc", strategy="auto", **settings)
    assert run.finish() == (0, "")
    (plan,) = run.of_kind("plan")
    assert plan["strategy"] == "pipeline"
    assert len(plan["stages"]) >= 2
    assert any(why.startswith("the model is cut by its layers, as it fits on no device") for why in plan["reasons"])
    assert [step["step"] for step in run.of_kind("step")] == [1, 2, 3]


def test_a_model_that_is_too_large_is_refused_where_another_way_was_asked_for(launch: Any) -> None:
    run = launch(_with_free({"b": 2.6}), "b", strategy="sync", batch_size=16, num_iterations=3)
    code, error = run.finish()
    assert code == 1
    assert re.search(r"b: the model does not fit on cpu: .*strategy=pipeline cuts a model", error)


@pytest.mark.long
def test_a_plan_leaves_out_a_device_without_room_as_the_run_does(cluster: Cluster, tmp_path: Path) -> None:
    job = _with_free({"c": 2.6})
    told, found = _measured(cluster, tmp_path, job, "ac", batch_size=16, strategy="auto")
    assert any(line.startswith("left out: c: the model does not fit on cpu") for line in told)
    assert found.names == ("a",)
    assert any(re.match(r"c \(cpu\): left out: the model does not fit on cpu: .* GB more", why) for why in found.notes)


@pytest.mark.long
def test_a_plan_of_a_model_that_fits_on_no_device_has_the_cut_that_the_run_would_make(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = _with_free(dict.fromkeys("abc", 2.6))
    told, found = _measured(cluster, tmp_path, job, "abc", batch_size=16, strategy="auto")
    assert any(line.startswith("the model is cut by its layers, as it fits on no device") for line in told)
    assert any(why.startswith("the model is cut by its layers, as it fits on no device") for why in found.notes)
    plan = planned(found, TrainingConfig(strategy="pipeline", batch_size=16))
    assert len(plan.cut.stages) >= 2
    assert plan.cut.bounds[-1] == BLOCKS
    assert plan.cut.seconds > 0
    assert plan.micro_batches == 8
