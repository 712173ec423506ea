"""How much of the summed speed of unlike hosts is left when they train one model together.

``python -m benchmarks.scaling [--rates 1000,100] [--ours sync,…] [--batch 24] [--seconds 40]`` (root on Linux)

Speeds 1 : 0.4 : 0.2 (simulated), the ready job ``text`` with 17 million parameters. ``of sum`` is samples/s together
over the sum of what each host does alone with the whole batch, its optimizer's step included: the pace of a simulated
device follows from the run's own measurement of this computer, and the optimizer's step is timed here after each row.
A slice costs a device a fixed time beside its samples', so 0.96 is the most that these devices give with 24 samples.

Bytes are counted at the hosts' network devices; a step is ``--batch`` samples, whatever the strategy calls a step. What
counts are the steps after those whose loss is looked at once more (8; the first round of ``local_sgd``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import ours
from benchmarks.lab import Outcome, Plan, job_of, open_fleet, simulated_notes
from benchmarks.ours import OurWay
from remote_agent.training.worker.device.simulation import SimulatedDevice

OURS = ("sync", "sync:codec=int8", "allreduce", "local_sgd:codec=int8:local_steps=10:overlap=true")
"""Strategies, with the settings that suit a slow link."""


def optimizer_seconds(plan: Plan, steps: int = 5) -> float:
    """Seconds of a step of the job's optimizer on this computer, on one thread."""
    job = job_of(plan)
    model = job.create_model()
    optimizer = job.create_optimizer(model, job.config)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # the first one builds the optimizer's state
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    torch.set_num_threads(threads)
    return (time.perf_counter() - began) / steps


def summed_speed(outcome: Outcome, speeds: Sequence[float], batch: int, optimizer_s: float) -> float:
    """Samples/s of the hosts alone, added up."""
    assert outcome.reference is not None
    devices = [SimulatedDevice(speed, outcome.reference).profile for speed in speeds]
    return sum(batch / (device.seconds(batch) + optimizer_s) for device in devices)


def line(outcome: Outcome, speeds: Sequence[float], plan: Plan, parameters: int) -> str:
    """One row of the table."""
    if outcome.error:
        return f"{outcome.name:52} failed: {outcome.error}"
    alone = summed_speed(outcome, speeds, plan.batch, optimizer_seconds(plan))
    units = parameters * outcome.samples / plan.batch
    return (
        f"{outcome.name:52} {outcome.steps:>6} {outcome.samples_per_second:>10.2f}"
        f" {outcome.samples_per_second / alone:>7.3f} {sum(outcome.sent) / units:>13.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="1000,100", metavar="MBIT,…", help="speeds of the links (default: 1000,100)")
    parser.add_argument("--speeds", default="1,0.4,0.2", help="the hosts' simulated speeds (default: 1,0.4,0.2)")
    parser.add_argument("--batch", type=int, default=24, help="samples of a step, over all hosts (default: 24)")
    parser.add_argument("--seconds", type=float, default=40.0, help="training of each way (default: 40)")
    parser.add_argument("--ours", default=",".join(OURS), help="strategy[:setting=value…] with commas between")
    options = parser.parse_args(arguments)
    ways = [OurWay.parse(text) for text in options.ours.split(",")]
    speeds = [float(speed) for speed in options.speeds.split(",")]
    plan = Plan(
        job=f"{Path(__file__).with_name('sized_text.py')}:Large",
        job_class="benchmarks.sized_text:Large",
        batch=options.batch,
        seconds=options.seconds,
    )
    parameters = sum(parameter.numel() for parameter in job_of(plan).create_model().parameters())
    failed = False
    for rate in map(float, options.rates.split(",")):
        print("\n".join(simulated_notes(rate, speeds)))
        print(f"{'':52} {'steps':>6} {'samples/s':>10} {'of sum':>7} {'B/param/step':>13}", flush=True)
        with open_fleet(rate, speeds) as fleet:
            for outcome in ours.run(fleet, ways, plan):
                print(line(outcome, speeds, plan, parameters), flush=True)
                failed = failed or bool(outcome.error)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
