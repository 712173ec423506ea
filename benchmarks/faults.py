"""Cost of each fault for a run: stall, recovery and weights, on several hosts with the product as a user has it.

``python -m benchmarks.faults [--rows worker,cut,…] [--strategy sync|local_sgd|pipeline|all] [--repetitions 5]
[--hosts 3]`` (root on Linux): each row of faults, struck so often, in one run where that is possible. A stall is the
longest time between two new steps around the fault, less the median one; ``noise`` is the same for the time without a
fault in those runs. Weights are compared with a plain torch loop on the same batches, as the largest over all tensors
of ``norm(ours - plain) / norm(plain)``, at most 1e-5 (``sync``, ``pipeline``). The record of slices has to say that
every sample was counted once. Exit code 1: something was beyond its budget, or not exact.

An older commit is measured beside by its own copy of the product, with this benchmark::

    git worktree add ../before COMMIT && cp -r benchmarks/faults.py benchmarks/faulty ../before/benchmarks/
    cd ../before && make .venv/for-development && .venv/bin/python -m benchmarks.faults --rows worker
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.faulty import figures, stage, strikes
from benchmarks.faulty.stage import PIPELINE, Stage, Verdict
from benchmarks.faulty.strikes import RECOVERED_S, SETTLE_STEPS, Blow, Strike
from tests.lab.following import RunError
from tests.lab.network import LabError

PIPELINE_STALL_S = 15.0
"""Budget of a fault in a pipeline, at least: layers are cut anew, and the steps since the copy are made again."""


@dataclass(frozen=True)
class Figure:
    """A measured quantity; ``budget`` is the most that it may be, None where there is none."""

    name: str
    unit: str
    budget: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A fault.

    Attributes:
        name: in the table.
        stall: budget of the stall in seconds; None: none.
        strike: strikes, and waits until all is well again.
        figures: further figures, by the keys of :attr:`Blow.values`.
        settings: of the runs.
        sharded: each host holds a part of the parameter server; a pipeline has none.
        alone: each repetition has a run of its own, and what was switched off is brought back after it.
    """

    name: str
    stall: float | None
    strike: Strike
    figures: Mapping[str, Figure] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    sharded: bool = False
    alone: bool = False

    def stall_with(self, strategy: str) -> float | None:
        """Budget of the stall with a strategy."""
        return max(self.stall, PIPELINE_STALL_S) if self.stall is not None and strategy == PIPELINE else self.stall


OFTEN = {"checkpoint_every": 40}

ROWS: Mapping[str, Row] = {
    "worker": Row(
        name="worker process killed",
        stall=1.0,
        strike=strikes.worker_killed,
        figures={"back": Figure("worker back", "s")},
    ),
    "cut": Row(
        name="cable cut for 20 s",
        stall=3.0,
        strike=strikes.cable_cut,
        figures={"back": Figure("worker back after the cable is in again", "s", 15.0)},
    ),
    "power": Row(
        name="host killed (power)",
        stall=3.0,
        strike=strikes.power_lost,
        figures={"back": Figure("worker back after it answers", "s", 15.0)},
    ),
    "slow": Row(
        name="device slows down to 0.4",
        stall=None,
        strike=strikes.device_slow,
        figures={
            "named": Figure("until worker_slow", "steps", 10),
            "shares": Figure("until shares follow", "steps", 10),
        },
    ),
    "laptop": Row(
        name="laptop's command killed",
        stall=1.0,
        strike=strikes.laptop_killed,
        figures={"whole": Figure("until attach shows all of it", "s")},
    ),
    "coordinator": Row(name="coordinator killed", stall=1.0, strike=strikes.coordinator_killed, settings=OFTEN),
    "coordinator-stopped": Row(
        name="coordinator stopped", stall=15.0, strike=strikes.coordinator_stopped, settings=OFTEN
    ),
    "shard": Row(name="shard's host lost", stall=3.0, strike=strikes.shard_lost, sharded=True, alone=True),
    "head": Row(name="head host lost", stall=30.0, strike=strikes.head_lost, alone=True),
}
"""By key, in the table's order."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row with one strategy: each figure's values, how the runs ended, and why there is no more of it."""

    row: Row
    strategy: str
    values: Mapping[Figure, Sequence[float]]
    noise: float
    verdicts: Sequence[Verdict]
    failure: str = ""

    @property
    def is_good(self) -> bool:
        """Every value is within its budget, and every run ended as it has to."""
        budgets = [(figure.budget, max(values)) for figure, values in self.values.items() if values]
        within = all(budget is None or worst <= budget for budget, worst in budgets)
        return within and not self.failure and all(verdict.is_good for verdict in self.verdicts)


def carry_out(fleet: Stage, row: Row, strategy: str, repetitions: int) -> Result:
    """Strike so often, and measure; an error is the result's ``failure``."""
    stall = Figure("stall", "s", row.stall_with(strategy))
    values: dict[Figure, list[float]] = {stall: [], **{figure: [] for figure in row.figures.values()}}
    verdicts: list[Verdict] = []
    noise, failure = 0.0, ""
    # A pipeline follows a change of speed once in 20 times that this takes.
    alone = row.alone or (strategy == PIPELINE and row.stall is None)
    for numbers in [[number] for number in range(repetitions)] if alone else [list(range(repetitions))]:
        try:
            blows, marks, verdict = _one_run(fleet, row, strategy, numbers)
        except (RuntimeError, AssertionError, OSError, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
            break
        verdicts.append(verdict)
        for blow in blows:
            values[stall].append(figures.stall(marks, blow.begin, blow.end))
            for key, value in blow.values.items():
                values[row.figures[key]].append(value)
        noise = max(noise, figures.noise(marks, ((blow.begin, blow.end) for blow in blows)))
    return Result(row=row, strategy=strategy, values=values, noise=noise, verdicts=verdicts, failure=failure)


def _one_run(
    fleet: Stage, row: Row, strategy: str, numbers: list[int]
) -> tuple[list[Blow], tuple[figures.Mark, ...], Verdict]:
    """A run with these repetitions in it."""
    shards = {"shards": len(fleet.lab.hosts)} if row.sharded else {}
    follower = fleet.train(strategy, **row.settings, **shards)
    blows: list[Blow] = []
    try:
        for number in numbers:
            follower.until_step(follower.step + SETTLE_STEPS, RECOVERED_S, after=len(follower.events))
            blows.append(row.strike(fleet, follower, number))
            follower = blows[-1].attached or follower
        follower.until_step(follower.step + SETTLE_STEPS, RECOVERED_S, after=len(follower.events))
        verdict = fleet.finish(follower, strategy)
        return blows, figures.progress(follower.events), verdict
    finally:
        follower.kill()
        fleet.bring_back()


def lines(result: Result) -> list[str]:
    """One row with one strategy."""
    name, found = result.row.name, []
    for figure, values in result.values.items():
        if values:
            most = "-" if figure.budget is None else f"{figure.budget:g}"
            mark = "  <-- BEYOND IT" if figure.budget is not None and max(values) > figure.budget else ""
            about = f"{figure.name}, {figure.unit}"
            measured = f"{len(values):>3} {statistics.median(values):>7.2f} {max(values):>7.2f} {most:>7}{mark}"
            found.append(f"{name:30} {result.strategy:9} {about:40} {measured}")
            name = ""
    found += [f"{'':40} {verdict.words}; noise {result.noise:.2f} s" for verdict in result.verdicts]
    return found + ([f"{name:30} {result.strategy:9} FAILED: {result.failure}"] if result.failure else [])


def table(hosts: int, strategies: Iterable[str], rows: Iterable[str], repetitions: int) -> list[Result]:
    """All rows on one lab, each printed as soon as it is there; after a row that failed the lab is a new one."""
    wanted = [(ROWS[key], way) for way in strategies for key in rows if way != PIPELINE or not ROWS[key].sharded]
    results: list[Result] = []
    while wanted:
        with stage.opened(hosts) as fleet:
            while wanted:
                row, strategy = wanted.pop(0)
                results.append(carry_out(fleet, row, strategy, repetitions))
                print("\n".join(lines(results[-1])), flush=True)
                if results[-1].failure:
                    break
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, choices=(3, 5), default=3, help="how many hosts (default: 3)")
    parser.add_argument("--strategy", choices=(*stage.SETTINGS, "all"), default="all", help="default: all")
    parser.add_argument("--repetitions", type=int, default=5, help="of each row (default: 5)")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"with commas between (default: {','.join(ROWS)})")
    options = parser.parse_args(arguments)
    strategies = tuple(stage.SETTINGS) if options.strategy == "all" else (options.strategy,)
    rows = options.rows.split(",")
    if unknown := {*rows} - {*ROWS}:
        parser.error(f"no {', '.join(sorted(unknown))}; rows: {', '.join(ROWS)}")
    print("\n".join(stage.simulated(options.hosts)))
    print(f"{'':30} {'strategy':9} {'':40} {'n':>3} {'median':>7} {'worst':>7} {'budget':>7}", flush=True)
    try:
        results = table(options.hosts, strategies, rows, options.repetitions)
    except (LabError, RunError) as error:
        print(f"benchmarks.faults: {error}", file=sys.stderr)
        return 1
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
