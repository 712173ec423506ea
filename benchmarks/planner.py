"""How right the planner is: predicted and measured step times, and what the chosen way costs beside the best one.

``python -m benchmarks.planner [--rates 1000,100,10] [--speeds 1:1:1,1:0.4:0.2] [--models small,middle,large]``

Root on Linux: the lab's hosts, links shaped by ``tc``, devices simulated by a sleep (``benchmarks.lab``). For each cell
``hetero-tui plan --json`` predicts; then each way trains for a few seconds on all hosts, and ``sync`` on the fastest
host alone; the median step of the run counts, without its first ones. *Regret* is how much slower the measured step of
the chosen way is than that of the best way that was run.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab import Fleet, last_line, open_fleet
from remote_agent import protocol
from tests.lab.product import HeteroTui, setting

JOBS = {
    name: f"{Path(__file__).with_name('sized_text.py')}:{name.capitalize()}" for name in ("small", "middle", "large")
}
"""Name on the command line: the job. 0.1, 3 and 17 million parameters."""

WAYS = ("sync", "allreduce", "sync:codec=int8", "ssp", "async", "local_sgd:local_steps=10")
"""With all hosts."""

ALONE = "alone"
SKIPPED = 3
"""First steps that do not count: a gradient is streamed from the second slice on, and shares settle."""

START_S = 150.0
"""A run may take so long beside its steps."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way in one cell; seconds of a step of ``samples``, predicted by the run's plan, and measured."""

    rate_mbit: float
    speeds: str
    model: str
    way: str
    hosts: int
    samples: int
    predicted_s: float
    measured_s: float
    steps: int
    chosen: bool
    error: str = ""

    @property
    def off(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else float("nan")


def cell(fleet: Fleet, rate: float, model: str, ways: Sequence[str], batch: int, seconds: float) -> Iterator[Row]:
    """All ways of one model on one fleet that is up."""
    lab = fleet.lab
    product = HeteroTui(lab.laptop, lab.inventory())
    alone = HeteroTui(lab.laptop, lab.inventory(hosts=[lab.hosts[0].name]))
    began = time.monotonic()
    plan = product.document("plan", JOBS[model], *setting({"batch_size": batch}), deadline=START_S)
    first_s, began = time.monotonic() - began, time.monotonic()
    again = product.document("plan", JOBS[model], *setting({"batch_size": batch}), deadline=START_S)
    print(f"  plan: {first_s:.1f} s, again {time.monotonic() - began:.1f} s (measured: {again['measured_now']})")
    print("  " + "\n  ".join(plan["verdicts"]), flush=True)
    best = plan["chosen"]
    for way in (ALONE, *ways):
        strategy, *pairs = ("sync" if way == ALONE else way).split(":")
        settings = {"strategy": strategy, "batch_size": batch, "num_iterations": 100_000}
        settings |= dict(pair.split("=") for pair in pairs)
        taken = _train(alone if way == ALONE else product, JOBS[model], settings, seconds)
        count = 1 if way == ALONE else len(fleet.speeds)
        same = best["strategy"] == strategy and not pairs and count == len(best["hosts"])
        solo = way == ALONE and len(best["hosts"]) == 1
        yield Row(
            rate_mbit=rate,
            speeds=":".join(f"{speed:g}" for speed in fleet.speeds),
            model=model,
            way=way,
            hosts=count,
            chosen=solo or (way != ALONE and same),
            **taken,
        )


def _train(product: HeteroTui, job: str, settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One run, stopped after so many seconds of steps."""
    predicted, run, begun, error = 0.0, "", 0.0, ""
    steps: list[protocol.Step] = []
    stopped = False
    with product.start("train", job, "--json", *setting(settings)) as train:
        assert train.stdout is not None
        assert train.stderr is not None
        guard = threading.Timer(START_S + seconds, train.kill)
        guard.start()
        told: list[str] = []
        reader = threading.Thread(target=lambda pipe: told.append(pipe.read()), args=(train.stderr,))
        reader.start()
        try:
            for line in train.stdout:
                match protocol.decode_event(line):
                    case protocol.RunStarted(run=run):
                        pass
                    case protocol.PlanMade(predicted_step_s=found):
                        predicted = found or 0.0
                    case protocol.Step() as step:
                        steps.append(step)
                        begun = begun or time.monotonic()
                        if not stopped and time.monotonic() - begun > seconds and len(steps) > 2 * SKIPPED:
                            stopped = True
                            product.run("stop", run, "--json")
                    case protocol.RunFailed(cause=error):
                        pass
        finally:
            guard.cancel()
            reader.join()
    counted = steps[SKIPPED:]
    if not counted and not error:
        error = f"{len(steps)} steps: {last_line(''.join(told))}"
    return {
        "samples": steps[-1].samples if steps else 0,
        "predicted_s": predicted,
        "measured_s": statistics.median(step.seconds for step in counted) if counted else 0.0,
        "steps": len(steps),
        "error": error,
    }


def line(row: Row) -> str:
    """A row of the table."""
    head = f"{row.rate_mbit:>5g} {row.speeds:>10} {row.model:>7} {row.way:>26}"
    if row.error:
        return f"{head} failed: {row.error}"
    mark = " chosen" if row.chosen else ""
    return f"{head} {row.predicted_s:>9.3f} {row.measured_s:>9.3f} {row.off:>+7.0%} {row.steps:>6}{mark}"


def summary(rows: Sequence[Row]) -> list[str]:
    """Errors of the predictions, and the regret of each cell's choice among exact ways."""
    good = [row for row in rows if not row.error and row.measured_s and row.predicted_s]
    errors = sorted(abs(row.off) for row in good)
    if not errors:
        return ["nothing was measured"]
    at = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    found = [f"error of {len(errors)} predictions: median {statistics.median(errors):.0%}, p90 {at:.0%}"]
    cells = dict.fromkeys((row.rate_mbit, row.speeds, row.model) for row in good)
    for key in cells:
        exact = [row for row in good if (row.rate_mbit, row.speeds, row.model) == key]
        exact = [row for row in exact if row.way in (ALONE, "sync", "allreduce")]
        chosen = [row for row in exact if row.chosen]
        name = f"{key[0]:g} Mbit/s, {key[1]}, {key[2]}"
        if chosen and len(exact) > 1:
            best = min(exact, key=lambda row: row.measured_s / row.samples)
            kept = best.measured_s / chosen[0].measured_s
            found.append(
                f"{key[0]:g} Mbit/s, {key[1]}, {key[2]}: chosen {chosen[0].way}, best {best.way}: {kept:.2f} of it"
            )
        else:
            found.append(f"{name}: what was chosen (some of the hosts) was not run")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="1000,100,10", metavar="MBIT,…", help="speeds of the links")
    parser.add_argument("--speeds", default="1:1:1,1:0.4:0.2,1:0.1:0.1", help="speeds of the hosts' devices")
    parser.add_argument("--models", default="small,middle,large", help="of 0.1, 3 and 17 million parameters")
    parser.add_argument("--ways", default=",".join(WAYS), help="strategy[:setting=value…] with commas between")
    parser.add_argument("--batch", type=int, default=24, help="samples of a step (default: 24)")
    parser.add_argument("--seconds", type=float, default=12.0, help="of steps of each run (default: 12)")
    parser.add_argument("--csv", type=Path, help="write the rows to this file as they come")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    print(f"{'Mbit/s':>5} {'speeds':>10} {'model':>7} {'way':>26}", end=" ")
    print(f"{'predicted':>9} {'measured':>9} {'off':>7} {'steps':>6}")
    for rate in map(float, options.rates.split(",")):
        for speeds in options.speeds.split(","):
            with open_fleet(rate, [float(speed) for speed in speeds.split(":")]) as fleet:
                product = HeteroTui(fleet.lab.laptop, fleet.lab.inventory())
                up = product.run("up", "--json")
                if up.returncode:
                    print(f"`up` gave exit code {up.returncode}: {last_line(up.stderr)}", file=sys.stderr)
                    return 1
                try:
                    for model in options.models.split(","):
                        for row in cell(fleet, rate, model, options.ways.split(","), options.batch, options.seconds):
                            print(line(row), flush=True)
                            rows.append(row)
                            _write(options.csv, rows)
                finally:
                    product.run("down", "--yes", "--json")
    print("\n".join(summary(rows)))
    return 0


def _write(path: Path | None, rows: Sequence[Row]) -> None:
    if path is not None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*vars(rows[0]), "off"])
            writer.writerows([*vars(row).values(), round(row.off, 4)] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
