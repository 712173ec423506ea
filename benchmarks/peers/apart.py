"""Hosts that exchange nothing: one of them alone for a moment, or all at the same time.

What a host does alone is what scaling is measured against; what all do at the same time, each for itself, is the most
that anybody reaches who shares this computer's cores as they do.

Variant ``alone`` leaves the simulated devices' sleep out: how long it is, is known. It prints
``{"gradient_s", "optimizer_s"}``, seconds of one step's two parts as this computer takes them, as means: what a
training's speed is made of. Variant ``together`` trains at the simulated pace, with ``batch`` samples of this host a
step, and reports as every peer.
"""

from __future__ import annotations

import json
import time

import torch

from benchmarks.peers.task import Meeting, Record, Settings, Task
from remote_agent.planning.device_profile import SMALLEST

MIN_STEPS = 2
"""That are timed alone, however long they take."""


def alone(task: Task) -> None:
    """Steps with the whole batch for about ``settings.seconds`` seconds, each part of them timed."""
    task.loss(torch.arange(SMALLEST)).backward()  # type: ignore[no-untyped-call]
    task.optimizer.step()  # the first one builds the optimizer's state
    gradients: list[float] = []
    steps: list[float] = []
    end = time.perf_counter() + task.settings.seconds
    while len(steps) < MIN_STEPS or time.perf_counter() < end:
        started = time.perf_counter()
        for parameter in task.model.parameters():
            parameter.grad = None
        task.loss(task.whole_batch(len(steps) + 1)).backward()  # type: ignore[no-untyped-call]
        computed = time.perf_counter()
        task.optimizer.step()
        gradients.append(computed - started)
        steps.append(time.perf_counter() - computed)
    print(json.dumps({"gradient_s": sum(gradients) / len(gradients), "optimizer_s": sum(steps) / len(steps)}))


def together(task: Task) -> None:
    """Train until the time is up, beginning when all hosts are ready."""
    task.loss(task.whole_batch(1)).backward()  # type: ignore[no-untyped-call]
    task.optimizer.step()
    meeting = Meeting(task.settings)
    record = Record(task)
    meeting.wait_for_all()
    record.start()
    for step in range(1, task.settings.steps + 1):
        indices = task.whole_batch(step)
        task.gradient(indices)
        task.optimizer.step()
        record.step(len(indices))
    record.finish()


def main() -> None:
    """Do what the variant says."""
    task = Task(Settings.from_command_line())
    {"alone": alone, "together": together}[task.settings.variant](task)


if __name__ == "__main__":
    main()
