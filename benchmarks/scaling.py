"""How much of the summed speed of unlike hosts is left when they train one model together.

``python -m benchmarks.scaling [--rates 1000,100] [--peers all] [--ours …] [--model large|text] [--csv FILE]``

Speeds 1 : 0.4 : 0.2 (simulated), the ready job ``text`` with 17 million parameters. Efficiency is samples/s together
over the sum of what each host does alone with the whole batch: gradients by the definition of the simulated devices,
and the optimizer's step as it was measured here, for the sum as for those who train together. Bytes are counted at the
hosts' network devices, from the first step to the last, everything included; a step is ``--batch`` samples, whatever
the strategy calls a step. One rate takes about 12 minutes with all peers.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks import ours
from benchmarks.lab import Fleet, Outcome, Plan, job_of, open_fleet, simulated_notes
from benchmarks.ours import OurWay, chosen_ways
from benchmarks.peers import Peer, runner
from benchmarks.peers.runner import chosen_peers
from remote_agent.training.speed.shares import DeviceProfile
from remote_agent.training.speed.simulation import SimulatedDevice

MODELS = {
    "large": (f"{Path(__file__).with_name('large_text.py')}:LargeText", "benchmarks.large_text:LargeText"),
    "text": ("text", "remote_agent.jobs.text:Text"),
}
"""Name on the command line: the job as ``hetero-tui train`` names it, and its class."""

OURS = (
    "sync",
    "sync:codec=bf16",
    "sync:codec=int8",
    "ssp:codec=int8",
    "async:codec=int8",
    "allreduce",
    "local_sgd:codec=int8:local_steps=10",
    "local_sgd:codec=int8:local_steps=10:overlap=true",
)
"""Each strategy of ours, with the settings that suit a slow link."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way at one speed of the links; ``bytes_*`` are per parameter and step of ``batch`` samples."""

    name: str
    rate_mbit: float
    steps: int
    samples: int
    seconds: float
    samples_per_second: float
    solo_sum: float
    efficiency: float
    bytes_all_hosts: float
    bytes_busiest_host: float
    error: str = ""


def solo_sum(speeds: Sequence[float], reference: DeviceProfile, batch: int, optimizer_s: float) -> float:
    """Samples/s of the hosts, each training alone with the whole batch, added up."""
    devices = [SimulatedDevice(speed, reference).profile for speed in speeds]
    return sum(batch / (device.seconds(batch) + optimizer_s) for device in devices)


def row_of(outcome: Outcome, rate: float, batch: int, parameters: int, solo: float) -> Row:
    """One outcome in the table's units."""
    steps = outcome.samples / batch
    units = parameters * steps if steps else float("inf")
    return Row(
        name=outcome.name,
        rate_mbit=rate,
        steps=outcome.steps,
        samples=outcome.samples,
        seconds=outcome.seconds,
        samples_per_second=outcome.samples_per_second,
        solo_sum=solo,
        efficiency=outcome.samples_per_second / solo,
        bytes_all_hosts=sum(outcome.sent) / units,
        bytes_busiest_host=max(outcome.sent, default=0) / units,
        error=outcome.error,
    )


def at_rate(fleet: Fleet, peers: Sequence[Peer], ways: Sequence[OurWay], plan: Plan, rate: float) -> list[Row]:
    """Everybody once on links of this speed, with the reference of this very lab."""
    computer = runner.calibrate(fleet, plan)
    print("\n".join(simulated_notes(rate, fleet.speeds, computer.reference)), flush=True)
    print(f"Real: a step of the optimizer takes {computer.optimizer_s * 1e3:.0f} ms here.", flush=True)
    parameters = sum(parameter.numel() for parameter in job_of(plan).create_model().parameters())
    rows = []

    def report(outcome: Outcome) -> None:
        # Ours measures the computer anew for each run: its efficiency is over its own reference.
        own = outcome.reference or computer.reference
        alone = solo_sum(fleet.speeds, own, plan.batch, computer.optimizer_s)
        row = row_of(outcome, rate, plan.batch, parameters, alone)
        print(line(row), flush=True)
        rows.append(row)

    if ways:
        for outcome in ours.run(fleet, ways, plan):
            report(outcome)
    for peer in peers:
        report(runner.run(fleet, peer, plan, computer.reference))
    return rows


HEAD = f"{'':52} {'Mbit/s':>6} {'steps':>6} {'samples/s':>10} {'of sum':>7} {'B/param/step':>13} {'busiest':>8}"


def line(row: Row) -> str:
    """One row of the table."""
    if row.error:
        return f"{row.name:52} {row.rate_mbit:>6g} failed: {row.error}"
    return (
        f"{row.name:52} {row.rate_mbit:>6g} {row.steps:>6} {row.samples_per_second:>10.2f} {row.efficiency:>7.2f}"
        f" {row.bytes_all_hosts:>13.2f} {row.bytes_busiest_host:>8.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="1000,100", metavar="MBIT,…", help="speeds of the links (default: 1000,100)")
    parser.add_argument("--speeds", default="1,0.4,0.2", help="the hosts' simulated speeds (default: 1,0.4,0.2)")
    parser.add_argument("--model", choices=list(MODELS), default="large", help="17M parameters, or text's own 1M")
    parser.add_argument("--batch", type=int, default=24, help="samples of a step, over all hosts (default: 24)")
    parser.add_argument("--seconds", type=float, default=40.0, help="longest training of each (default: 40)")
    parser.add_argument("--steps", type=int, default=100_000, help="most steps of each (default: as many as fit)")
    parser.add_argument("--round", type=int, default=10, help="inner steps of the peers' rounds (default: 10)")
    parser.add_argument("--peers", default="all", help="names with commas between, all or none")
    parser.add_argument("--ours", default=",".join(OURS), help="strategy[:setting=value…] with commas between, or none")
    parser.add_argument("--csv", type=Path, help="write the table to this file")
    options = parser.parse_args(arguments)
    try:
        peers, ways = chosen_peers(options.peers), chosen_ways(options.ours)
        speeds = tuple(float(speed) for speed in options.speeds.split(","))
        rates = tuple(float(rate) for rate in options.rates.split(","))
    except ValueError as error:
        parser.error(str(error))
    job, job_class = MODELS[options.model]
    plan = Plan(
        job=job,
        job_class=job_class,
        batch=options.batch,
        seed=0,
        steps=options.steps,
        seconds=options.seconds,
        snapshot_every=0,
        round_steps=options.round,
    )
    print(HEAD)
    rows = []
    for rate in rates:
        with open_fleet(rate, speeds) as fleet:
            rows += at_rate(fleet, peers, ways, plan, rate)
    print("Efficiency: samples/s over the sum of what each host does alone (whole batch). Bytes sent, all hosts.")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([one.name for one in fields(Row)])
            writer.writerows([getattr(row, one.name) for one in fields(Row)] for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
