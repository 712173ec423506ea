"""What every fault costs a run: stalls, recoveries and weights, on several hosts with the product as a user has it.

``python -m benchmarks.faults [--hosts 3] [--strategy sync|local_sgd|pipeline|all] [--repetitions 5]
[--rows worker,cut,…] [--csv FILE]``: each row of faults, struck so often. A stall is the longest time between two new
steps around the fault, less the median one; ``noise`` is the same for the time without a fault in those runs. Weights
are compared with a plain torch loop on the same batches, as the largest over all tensors of
``norm(ours - plain) / norm(plain)``, at most 1e-5 (``sync``, ``pipeline``). The record of slices has to say that every
sample was counted once.

``--rows`` takes faults of ``rows.RARE`` too, which no promise names: lossy links, processes and machines that stop for
a while. ``--tell`` prints what a user saw of each fault.

``python -m benchmarks.faults --schedule [--faults 60] [--minutes 30] [--seed 1] [--kinds worker,cut]``: random faults
in one run; see :mod:`benchmarks.faulty.schedule` for what is measured. ``--beside torchft`` puts torchft through the
same plan afterwards, on devices that are alike, as it cuts evenly (:mod:`benchmarks.faulty.torchft`; it has to be
installed: ``python -m benchmarks.peers.environment``).

Exit code 1: something was beyond its budget, or not exact. Linux and root, as for ``tests/lab``. Three hosts, five
repetitions and one strategy take about 35 minutes.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.faulty import beside, ours, stage, torchft
from benchmarks.faulty.devices import ALIKE, PACES, Devices
from benchmarks.faulty.measuring import Result, Say, carry_out, silent, tell
from benchmarks.faulty.plan import KINDS
from benchmarks.faulty.rows import RARE, ROWS, Figure
from benchmarks.faulty.schedule import Course
from benchmarks.peers import environment
from tests.lab.following import RunError
from tests.lab.network import LabError

EVERY = {**ROWS, **RARE}

HEAD = f"{'':30} {'strategy':9} {'':40} {'n':>3} {'median':>7} {'worst':>7} {'budget':>7}"


def lines(result: Result) -> list[str]:
    """One row with one strategy."""
    name = result.row.name
    found = []
    for figure, values in result.values.items():
        if values:
            found.append(f"{name:30} {result.strategy:9} {_figure(figure, values)}")
            name = ""
    found += [f"{'':40} {verdict.words}; noise {result.noise:.2f} s" for verdict in result.verdicts]
    if result.failure:
        found.append(f"{name:30} {result.strategy:9} FAILED: {result.failure}")
    return found


def _figure(figure: Figure, values: Sequence[float]) -> str:
    most = "-" if figure.budget is None else f"{figure.budget:g}"
    mark = "  <-- BEYOND IT" if figure.budget is not None and max(values) > figure.budget else ""
    about = f"{figure.name}, {figure.unit}"
    return f"{about:40} {len(values):>3} {statistics.median(values):>7.2f} {max(values):>7.2f} {most:>7}{mark}"


def table(
    hosts: int, strategies: Iterable[str], rows: Iterable[str], repetitions: int, say: Say = silent
) -> list[Result]:
    """All rows on one lab, each printed as soon as it is there; after a row that failed the lab is a new one."""
    wanted = [(strategy, key) for strategy in strategies for key in rows if EVERY[key].is_of(strategy)]
    results: list[Result] = []
    while wanted:
        with_disks = EVERY[wanted[0][1]].disks
        with stage.opened(hosts, disks=with_disks) as fleet:
            while wanted and EVERY[wanted[0][1]].disks == with_disks:
                strategy, key = wanted.pop(0)
                results.append(carry_out(fleet, EVERY[key], strategy, repetitions, say))
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
    parser.add_argument("--tell", action="store_true", help="print what a user saw of each fault")
    parser.add_argument("--csv", type=Path, help="write every value to this file")
    parser.add_argument("--schedule", action="store_true", help="random faults in one run instead of the table")
    parser.add_argument("--faults", type=int, default=60, help="of the schedule (default: 60)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the schedule (default: 30)")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (default: 1)")
    parser.add_argument(
        "--kinds",
        default=",".join(KINDS),
        help=f"of the schedule's faults, with commas between (default: {','.join(KINDS)})",
    )
    parser.add_argument(
        "--beside", choices=(torchft.PACKAGE,), help="the same schedule for this peer too, on devices that are alike"
    )
    options = parser.parse_args(arguments)
    if options.beside and not options.schedule:
        parser.error("--beside goes with --schedule")
    if options.beside:
        _, missing = environment.python_with(options.beside)
        if missing:
            parser.error(f"{options.beside}: {missing}")
    strategies = tuple(stage.SETTINGS) if options.strategy == "all" else (options.strategy,)
    rows, kinds = options.rows.split(","), options.kinds.split(",")
    unknown = sorted({*rows} - {*EVERY} | {*kinds} - {*KINDS})
    if unknown:
        parser.error(f"no {', '.join(unknown)}; rows: {', '.join(EVERY)}; kinds: {', '.join(KINDS)}")
    paces = ALIKE if options.beside else PACES
    print("\n".join(stage.simulated(paces[: options.hosts])), flush=True)
    try:
        if options.schedule:
            return _schedules(options, strategies, kinds)
        print(HEAD, flush=True)
        results = table(options.hosts, strategies, rows, options.repetitions, tell if options.tell else silent)
    except (LabError, RunError) as error:
        print(f"benchmarks.faults: {error}", file=sys.stderr)
        return 1
    if options.csv:
        _write(options.csv, options.hosts, results)
    return 0 if all(result.is_good for result in results) else 1


def _schedules(options: argparse.Namespace, strategies: Iterable[str], kinds: Sequence[str]) -> int:
    """Each strategy through the same schedule, with a lab of its own, and the peer after it on another."""
    seconds = 60 * options.minutes
    paces = ALIKE if options.beside else PACES
    good = True
    found: list[tuple[str, Course]] = []
    for strategy in strategies:
        _say(f"{strategy}:")
        with stage.opened(options.hosts, paces) as fleet:
            outcome = ours.carry_out(
                fleet, strategy, seed=options.seed, faults=options.faults, seconds=seconds, kinds=kinds, say=_say
            )
        print("\n".join(ours.lines(outcome)), flush=True)
        good = good and outcome.is_good
        found.append((f"ours, {strategy}", outcome.course))
        if options.beside:
            _say(f"{options.beside}, beside {strategy}:")
            with stage.lab_of(options.hosts) as lab:
                devices = Devices(lab, paces)
                peer = torchft.carry_out(
                    lab, devices, strategy, outcome.course.plan, head=outcome.head, seconds=seconds, say=_say
                )
            print("\n".join(beside.lines(outcome, peer)), flush=True)
            found.append((peer.about, peer.course))
    if options.csv:
        _write_schedules(options.csv, options.hosts, found)
    return 0 if good else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(path: Path, hosts: int, results: Iterable[Result]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hosts", "strategy", "fault", "figure", "unit", "budget", "value", "failure"])
        for result in results:
            about = (hosts, result.strategy, result.row.key)
            for figure, values in result.values.items():
                writer.writerows([*about, figure.name, figure.unit, figure.budget, value, ""] for value in values)
            for verdict in result.verdicts:
                writer.writerow([*about, "weights", "relative", stage.EXACT, verdict.error, "; ".join(verdict.wrong)])
            if result.failure:
                writer.writerow([*about, "", "", "", "", result.failure])


def _write_schedules(path: Path, hosts: int, courses: Iterable[tuple[str, Course]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hosts", "who", "figure", "value"])
        for who, course in courses:
            writer.writerows([hosts, who, figure, value] for figure, value in course.figures.items())


if __name__ == "__main__":
    sys.exit(main())
