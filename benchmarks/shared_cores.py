"""CPU hosts that are one computer in truth: three that each take all its cores to be theirs, beside the best two.

``python -m benchmarks.shared_cores [--rounds N] [--steps N] [--strategy NAME]``

As where several machines of an inventory are containers or virtual machines on the same computer. Runs with two and
with three hosts take turns on one cluster; the figure is the median step from step 6 on, and how often the batch was
cut anew. By default the run's plan chooses how the three are used, as ``hetero-tui train`` has it; the two always train
with ``sync``. Exit code 1 where three hosts need more than 1.2 times the step of two, or more than one cut in 20 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from remote_agent.protocol import DeviceSpec, RunSpec, encode
from tests.training import loopback
from tests.training.loopback import Cluster

MAX, STEPS_A_CUT, SETTLED, BATCH, RUN_S = 1.2, 20, 6, 256, 300.0

JOB = """
import torch
from torch import nn


class Job:
    def create_model(self):
        return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def create_optimizer(self, model, config):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def create_data(self):
        generator = torch.Generator().manual_seed(5)
        return torch.randn(4096, 256, generator=generator), torch.randint(0, 10, (4096,), generator=generator)
"""


@dataclass(frozen=True)
class Figures:
    """Of one run: the median step once it has settled, the longest of the first, both in seconds, and cuts."""

    step_s: float
    first_s: float
    cuts: int


def measure(hosts: str, steps: int, strategy: str, cluster: Cluster) -> Figures:
    """One run on these hosts.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="shared-cores") as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB)
        spec = RunSpec(
            run=folder.name,
            job="job.py:Job",
            cluster="shared-cores",
            host="a",
            ray_address=cluster.address,
            node_address=loopback.HEAD_ADDRESS,
            devices=tuple(DeviceSpec(host=host, device="cpu", name="test") for host in hosts),
            server_host="a",
            config={"num_iterations": steps, "batch_size": BATCH, "checkpoint_seconds": 0, "strategy": strategy},
        )
        (folder / "run.json").write_text(encode(spec))
        command = [sys.executable, "-m", "remote_agent.training.coordinator.main", str(folder)]
        done = subprocess.run(
            command, env=cluster.environment, cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the run failed: {done.stderr.strip()}")
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    seconds = [event["seconds"] for event in events if event["kind"] == "step"]
    cuts = sum(event["kind"] == "rebalanced" for event in events)
    return Figures(statistics.median(seconds[SETTLED - 1 :]), max(seconds[: SETTLED - 1]), cuts)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind (default: 3)")
    parser.add_argument("--steps", type=int, default=60, help="of each run (default: 60)")
    parser.add_argument("--strategy", default="auto", help="of the three (default: auto)")
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    two, three = [], []
    with loopback.running("abc", cpus=cores) as cluster:
        for _ in range(options.rounds):
            two.append(measure("ab", options.steps, "sync", cluster))
            three.append(measure("abc", options.steps, options.strategy, cluster))
    ratios = [more.step_s / less.step_s for less, more in zip(two, three, strict=True)]
    for name, found in (("two hosts", two), ("three hosts", three)):
        step_s, first_s = (statistics.median(getattr(each, field) for each in found) for field in ("step_s", "first_s"))
        cuts = ", ".join(str(each.cuts) for each in found)
        print(f"{name}: step {step_s * 1e3:.1f} ms, longest of the first {first_s * 1e3:.1f} ms; cuts: {cuts}")
    ratio = statistics.median(ratios)
    often = max(each.cuts for each in three) > options.steps / STEPS_A_CUT
    print(f"three over two: {ratio:.2f} ({', '.join(f'{each:.2f}' for each in ratios)}), at most {MAX}; {cores} cores")
    return int(ratio > MAX or often)


if __name__ == "__main__":
    sys.exit(main())
