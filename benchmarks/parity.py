"""Do uneven, sharded, distributed runs end with the weights of a plain torch loop? The whole matrix, on real processes.

``python -m benchmarks.parity [--models …] [--optimizers …] [--workers 1,3,5] [--paths …] [--kills no|yes|both]
[--pairs] [--csv FILE] [--plot FILE]``

Full-batch training of four unlike models for 20 steps with each optimizer, on 1, 3 and 5 workers with unequal slices,
on each way that is exact; and once more with one worker killed in the middle of step 7. The figure is the largest over
all tensors of ``norm(ours - plain) / norm(plain)``. Sums of float32 in another order make about 1e-6; a row above
1e-5, or a run that was not what the row says (for example no worker was lost), makes the exit code 1. A Ray cluster of
three nodes on this computer's loopback addresses (Linux) is started for it, and ended. Nothing is simulated.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.parity_jobs import MODELS, OPTIMIZERS
from benchmarks.parity_runs import HOSTS, PATHS, Case, Driver, Row
from tests.training import loopback

MAX = 1e-5
"""The most that a row's error may be."""

WORKERS = (1, 3, 5)

Pair = tuple[tuple[str, object], tuple[str, object]]


def matrix(
    models: Iterable[str] = tuple(MODELS),
    optimizers: Iterable[str] = OPTIMIZERS,
    workers: Iterable[int] = WORKERS,
    paths: Iterable[str] = tuple(PATHS),
    kills: Iterable[bool] = (False, True),
) -> list[Case]:
    """All cases of these parts; of a single worker none is killed."""
    product = itertools.product(models, optimizers, workers, paths, kills)
    return [Case(*parts) for parts in product if not (parts[2] == 1 and parts[4])]


def pairwise(cases: Sequence[Case]) -> list[Case]:
    """Few of ``cases`` in which every two values that occur together somewhere do so (Cohen et al., 1997: AETG)."""
    missing = {pair for case in cases for pair in pairs_of(case)}
    chosen: list[Case] = []
    while missing:
        best = max(cases, key=lambda case: len(missing.intersection(pairs_of(case))))
        missing.difference_update(pairs_of(best))
        chosen.append(best)
    return chosen


def pairs_of(case: Case) -> list[Pair]:
    """Every two of the case's values, with their fields' names."""
    return list(itertools.combinations(vars(case).items(), 2))


def is_good(row: Row) -> bool:
    """Whether the run was what its case says, and its weights are the plain loop's."""
    return not row.mistake and row.error <= MAX


HEAD = f"{'model':14} {'optimizer':20} {'path':12} {'workers':>7} {'killed':>6} {'error':>8} {'s':>5}  slices"


def line(row: Row) -> str:
    """One row of the table."""
    case = row.case
    about = row.mistake or "+".join(map(str, row.slices))
    mark = "" if is_good(row) else "  <-- NOT EQUAL" if not row.mistake else "  <-- NOT VALID"
    return (
        f"{case.model:14} {case.optimizer:20} {case.path:12} {case.workers:>7} {'yes' if case.killed else 'no':>6}"
        f" {row.error:>8.1e} {row.seconds:>5.1f}  {about}{mark}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 when a row is not good."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="with commas between (default: all)")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS), help="with commas between (default: all)")
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)), help="of 1, 3 and 5 (default: all)")
    parser.add_argument("--paths", default=",".join(PATHS), help="with commas between (default: all)")
    parser.add_argument("--kills", choices=("no", "yes", "both"), default="both", help="with a kill? (default: both)")
    parser.add_argument("--pairs", action="store_true", help="only so many rows that all pairs of values are covered")
    parser.add_argument("--csv", type=Path, help="write the table to this file")
    parser.add_argument("--plot", type=Path, help="draw the errors into this file (needs matplotlib)")
    options = parser.parse_args(arguments)
    try:
        cases = matrix(
            _chosen(options.models, MODELS),
            _chosen(options.optimizers, OPTIMIZERS),
            [int(count) for count in _chosen(options.workers, map(str, WORKERS))],
            _chosen(options.paths, PATHS),
            {"no": (False,), "yes": (True,), "both": (False, True)}[options.kills],
        )
    except ValueError as error:
        parser.error(str(error))
    if options.pairs:
        cases = pairwise(cases)
    print(f"{len(cases)} runs\n{HEAD}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster ends, too
    found: list[Row] = []
    with loopback.running(HOSTS) as cluster, Driver(cluster) as driver:
        for row in map(driver.row, cases):
            found.append(row)
            print(line(row), flush=True)
    bad = [row for row in found if not is_good(row)]
    worst = max((row.error for row in found if not row.mistake), default=float("nan"))
    print(f"{len(found)} runs, {len(bad)} of them not good; largest error {worst:.1e} (limit {MAX:g})")
    if options.csv:
        write_csv(options.csv, found)
    if options.plot:
        draw(options.plot, found)
    return 1 if bad or not found else 0


def _chosen(text: str, valid: Iterable[str]) -> list[str]:
    names, known = text.split(","), list(valid)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def write_csv(path: Path, found: Sequence[Row]) -> None:
    """The table, with errors in full."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "optimizer", "workers", "path", "killed", "error", "seconds", "slices", "mistake"])
        for row in found:
            slices = "+".join(map(str, row.slices))
            writer.writerow([*vars(row.case).values(), row.error, row.seconds, slices, row.mistake])


def draw(path: Path, found: Sequence[Row]) -> None:
    """Each row's error, a colour a path and a cross where a worker was killed; says so where matplotlib is missing."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    columns = list(dict.fromkeys((row.case.model, row.case.optimizer) for row in found))
    paths = list(dict.fromkeys(row.case.path for row in found))
    for way, killed in itertools.product(paths, (False, True)):
        points = [row for row in found if row.case.path == way and row.case.killed is killed and not row.mistake]
        at = [columns.index((row.case.model, row.case.optimizer)) + 0.15 * (paths.index(way) - 1.5) for row in points]
        label = f"{way}, one killed" if killed else way
        errors = [row.error for row in points]
        axes.scatter(at, errors, color=f"C{paths.index(way)}", marker="x" if killed else "o", s=18, label=label)
    axes.axhline(MAX, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.set_xticks(range(len(columns)), [" ".join(column) for column in columns], rotation=40, ha="right", fontsize=8)
    axes.set_ylabel("relative error of the weights after 20 steps")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
