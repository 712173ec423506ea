"""How fast this computer is with the job, measured as our own workers do it: what simulated devices refer to."""

from __future__ import annotations

import json
import time

import torch

from benchmarks.peers.task import Settings, Task
from remote_agent.planning import shares
from remote_agent.training.coordinator.processes.measure import sizes

MEASUREMENTS = 3
"""Of each size; the fastest counts."""


def main() -> None:
    """Measure, and print ``{"speed", "overhead_s"}``."""
    settings = Settings.from_command_line()
    task = Task(settings)
    points = []
    for size in sizes(settings.batch, settings.hosts, None) * (1 + MEASUREMENTS):
        started = time.perf_counter()
        task.loss(torch.arange(size)).backward()  # type: ignore[no-untyped-call]
        points.append((size, time.perf_counter() - started))
    found = shares.fit(points)
    print(json.dumps({"speed": found.speed, "overhead_s": found.overhead_s}))


if __name__ == "__main__":
    main()
