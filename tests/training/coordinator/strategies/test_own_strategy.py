"""A strategy, a codec and a kind of device that a job's file defines train on a real cluster: nothing else knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_agent.settings import CODECS
from remote_agent.strategies import SPECS
from remote_agent.training.config import TrainingConfig
from remote_agent.training.shared.own_devices import KINDS
from tests.training import plain

JOB = """

class Job:
    config = TrainingConfig({settings})

    def create_model(self):
        return nn.Sequential(nn.Linear(20, {width}), nn.Tanh(), nn.Linear({width}, 5))

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(100, 20, generator=generator)
        return x, (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
"""


RELAY = '''
import time

import torch
from torch import nn

from remote_agent.strategies import StrategySpec, register
from remote_agent.training.shared import flat, rpc
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.shared.slices import SliceSpan
from remote_agent.training.shared.messages import Slice
from remote_agent.training.coordinator.session import StepReport
from remote_agent.training.coordinator.strategies.base import Strategy
from remote_agent.training.worker.engine import Engine

ANSWER_S = 30.0


class Relay(Strategy):
    """One worker after the other makes a step on the whole batch, and hands the weights to the next."""

    def steps(self, session):
        step, weights = session.order.done, None
        while True:
            step += 1
            member = session.members[step % len(session.members)]
            first, last = session.order.span(step)
            began = time.monotonic()
            part = Slice.whole(session.order.take(first, last), begin=first)
            loss, compute_s = rpc.get(member.call("make", step, part, weights), ANSWER_S)
            weights = member.call("weights")
            seconds = time.monotonic() - began
            yield StepReport(
                step=step,
                loss=loss,
                samples=last - first,
                seconds=seconds,
                bytes_pushed=session.payload_bytes,
                bytes_pulled=session.payload_bytes,
                workers=(member.times(last - first, seconds, compute_s=compute_s),),
                weights=lambda: rpc.get(weights, ANSWER_S),
                slices=(SliceSpan(member.name, first, last),),
            )
            if not session.goes_on(step, last):
                return


class Runner(Engine):
    """Makes a step with an optimizer of its own."""

    computed, following = 0, False

    def join(self, way, late=False):
        self.optimizer = job.create_optimizer(self.parts.factory, self.parts.model, self.parts.config)
        return "relay"

    def make(self, step, part, weights):
        if weights is not None:
            self.parts.weights.load(weights)
        began = time.monotonic()
        result = self.parts.compute(step, part)
        for parameter in flat.trained(self.parts.model).values():
            parameter.grad.div_(result.weight)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.computed = step
        return result.loss, time.monotonic() - began

    def follow(self):
        return None

    def enter(self, step):
        pass


register(StrategySpec(name="relay", coordinator=Relay, worker=Runner, servers=False))
''' + JOB.format(settings='strategy="relay"', width=16)


HALVES = """
import torch
from torch import nn

from remote_agent.training import TrainingConfig
from remote_agent.training.wire import codecs


class Halves:
    name, code, lossy, feedback = "fp16", 77, True, True

    def size(self, count):
        return 2 * count

    def encode(self, values):
        return values.to(torch.float16).view(torch.uint8)

    def decode(self, payload, out):
        out.copy_(payload.view(torch.float16))


codecs.register("fp16", Halves)
""" + JOB.format(settings='codec="fp16"', width=160)


TWIN = """
import torch
from torch import nn

from remote_agent.training import TrainingConfig
from remote_agent.training.worker.device import backend


class Twin(backend.Backend):
    kind = "cpu:1"

    def has_bfloat16(self, device):
        return False

    def title(self, device):
        return "the second processor"


backend.register(Twin())
""" + JOB.format(settings='precision="bf16"', width=16)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What a job's file registers in this process is gone after the test."""
    yield
    SPECS.pop("relay", None)
    CODECS.pop("fp16", None)
    KINDS.pop("cpu:1", None)


@pytest.mark.ray
def test_a_job_brings_a_codec_of_its_own(launch: Any) -> None:
    run = launch(HALVES, "ab", num_iterations=40, batch_size=40, stream="network", rebalance=False)
    assert run.finish() == (0, "")
    assert "codec=fp16 over the network, gradients and weights" in run.of_kind("plan")[0]["reasons"]
    steps, parameters = run.of_kind("step"), run.of_kind("run_started")[0]["parameters"]
    assert 1.9 < sum(step["bytes_pulled"] for step in steps) / (2 * len(steps) * parameters) < 2.2
    assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]


@pytest.mark.ray
def test_a_job_brings_a_strategy_of_its_own(launch: Any, tmp_path: Path) -> None:
    settings = {"num_iterations": 9, "batch_size": 30, "seed": 3}
    run = launch(RELAY, "abc", **settings)
    assert run.finish() == (0, "")
    assert run.of_kind("plan")[0]["strategy"] == "relay"
    assert len({step["workers"][0]["worker"] for step in run.of_kind("step")}) == 3
    expected = plain.train(plain.job_of(RELAY, tmp_path), TrainingConfig(**settings))
    plain.assert_equal(plain.weights_of(run), expected)


@pytest.mark.ray
def test_a_job_brings_a_kind_of_device_of_its_own(launch: Any, tmp_path: Path) -> None:
    settings = {"num_iterations": 6, "batch_size": 30, "seed": 3}
    run = launch(TWIN, "ab", device="cpu:1", **settings)
    assert run.finish() == (0, "")
    assert {joined["device"] for joined in run.of_kind("worker_joined")} == {"cpu:1"}
    reasons = " ".join(run.of_kind("plan")[0]["reasons"])
    assert "computes in fp32: the second processor has no bf16" in reasons, "its own class is asked"
    expected = plain.train(plain.job_of(TWIN, tmp_path), TrainingConfig(**settings))
    plain.assert_equal(plain.weights_of(run), expected)
