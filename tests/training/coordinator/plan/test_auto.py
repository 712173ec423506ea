"""``strategy=auto`` on a real cluster: the way is chosen from what was measured, and the run's events say why."""

from __future__ import annotations

from typing import Any

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
