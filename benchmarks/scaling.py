"""How much of the summed speed of unlike hosts is left when they train one model together.

``python -m benchmarks.scaling [--rates 1000,100] [--peers all] [--ours …] [--model large|text] [--csv FILE]``

Speeds 1 : 0.4 : 0.2 (simulated), the ready job ``text`` with 17 million parameters. Efficiency (``of sum``) is
samples/s together over the sum of what each host does alone with the whole batch, its optimizer's steps included. That
sum is measured directly before and directly after each row (:mod:`benchmarks.solo`); the row is compared with the mean,
``±sum`` and ``±pace`` say how far the two lie apart: the sums, and this computer's own pace. Three bounds beside it:

- *no exchange, whole batches*: all hosts at the same time, each for itself as it would alone: what these cores give.
  Each row's efficiency over this one's is ``of ceiling``;
- ``cut``: what is left by what a host computes at a time, by the definition of the simulated devices and the row's own
  measurement of this computer: a slice costs a device a fixed time beside its samples', and samples are whole. It
  rises with ``--batch``, and with ``local_batch`` of ``local_sgd``;
- *no exchange, parts of a step*: the same measured, with the parts into which our planner cuts a step.

Bytes are counted at the hosts' network devices, from the first step to the last, everything included; a step is
``--batch`` samples, whatever the strategy calls a step. Rates of peers count from the start, the first exchange and the
last one included: a run should have ten steps or more. Ours count after the steps whose loss is looked at once more (8;
the first round of ``local_sgd``), which are a fifth longer. One rate takes about 30 minutes with all peers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ours, solo
from benchmarks.lab import Fleet, Outcome, Plan, job_of, open_fleet, simulated_notes, write_csv
from benchmarks.ours import OurWay, chosen_ways
from benchmarks.peers import Peer, runner
from benchmarks.peers.runner import chosen_peers
from benchmarks.scaling_rows import HEAD, Row, Setting, line, row_of
from benchmarks.solo import Beside
from remote_agent.planning import shares

MODELS = {
    "large": (f"{Path(__file__).with_name('sized_text.py')}:Large", "benchmarks.sized_text:Large"),
    "text": ("text", "remote_agent.jobs.text:Text"),
}
"""Name on the command line: the job as ``hetero-tui train`` names it, and its class."""

OURS = (
    "sync",
    "sync:codec=bf16",
    "sync:codec=int8",
    "allreduce",
    "local_sgd:codec=int8:local_steps=10",
    "local_sgd:codec=int8:local_steps=10:overlap=true",
)
"""Each strategy of ours, with the settings that suit a slow link."""

WHOLE, PARTS = "no exchange, whole batches", "no exchange, parts of a step"

OWN_PACE = OurWay("alone", {})
"""What hosts with parts of a step and no exchange come closest to."""


class Table:
    """The rows of one speed of the links, as they come; between two rows each host is measured alone once more."""

    def __init__(self, fleet: Fleet, plan: Plan, setting: Setting, solo_seconds: float) -> None:
        self.rows: list[Row] = []
        self._fleet, self._plan, self._setting, self._seconds = fleet, plan, setting, solo_seconds
        self._ceiling: float | None = None
        self._before = self._alone()

    def add(self, outcome: Outcome, way: OurWay | None = None) -> None:
        """A run has just ended: measure, and print its row."""
        before, self._before = self._before, self._alone()
        row = row_of(outcome, self._setting, Beside(before, self._before), self._ceiling, way)
        if outcome.name == WHOLE and not outcome.error:
            self._ceiling = row.efficiency
        print(line(row), flush=True)
        self.rows.append(row)

    def _alone(self) -> solo.Solo:
        found = solo.measure(self._fleet, self._plan, self._seconds)
        print(
            f"  alone: {found.total(self._setting.reference):.2f} samples/s in all, the computer itself"
            f" {found.pace:.1f}, the optimizer's step {found.optimizer_s * 1e3:.0f} ms",
            flush=True,
        )
        return found


def at_rate(
    fleet: Fleet, peers: Sequence[Peer], ways: Sequence[OurWay], plan: Plan, rate: float, solo_seconds: float
) -> list[Row]:
    """Each way once on links of this speed, with the reference of this very lab."""
    reference = runner.calibrate(fleet, plan)
    print("\n".join(simulated_notes(rate, fleet.speeds, reference)), flush=True)
    parameters = sum(parameter.numel() for parameter in job_of(plan).create_model().parameters())
    setting = Setting(rate_mbit=rate, batch=plan.batch, parameters=parameters, reference=reference)
    table = Table(fleet, plan, setting, solo_seconds)
    parts = shares.split(plan.batch, solo.profiles(fleet.speeds, reference))
    whole = [plan.batch] * len(parts)
    table.add(solo.together(fleet, plan, reference, whole, WHOLE))
    table.add(solo.together(fleet, plan, reference, parts, PARTS), OWN_PACE)
    if ways:
        for way, outcome in zip(ways, ours.run(fleet, ways, plan), strict=True):
            table.add(outcome, way)
    for peer in peers:
        table.add(runner.run(fleet, peer, plan, reference))
    return table.rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="1000,100", metavar="MBIT,…", help="speeds of the links (default: 1000,100)")
    parser.add_argument("--speeds", default="1,0.4,0.2", help="the hosts' simulated speeds (default: 1,0.4,0.2)")
    parser.add_argument("--model", choices=list(MODELS), default="large", help="17M parameters, or text's own 1M")
    parser.add_argument("--batch", type=int, default=24, help="samples of a step, over all hosts (default: 24)")
    parser.add_argument("--seconds", type=float, default=40.0, help="longest training of each (default: 40)")
    parser.add_argument(
        "--solo", type=float, default=6.0, help="each host alone between two rows, seconds (default: 6)"
    )
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
    try:
        for rate in rates:
            with open_fleet(rate, speeds) as fleet:
                rows += at_rate(fleet, peers, ways, plan, rate, options.solo)
    except RuntimeError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    print("of sum: samples/s over the sum of what each host does alone (whole batch). Bytes sent, all hosts.")
    if options.csv:
        write_csv(options.csv, Row, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
