"""Do training scripts as people write them give the same weights as plain torch, or are they refused with a way out?

``python -m benchmarks.compatibility [--only NAMES] [--areas NAMES] [--workers 2,3] [--strategy sync,allreduce] [--kill]
[--device twin|cuda:0] [--json FILE]``

Each script of :mod:`benchmarks.compatible.scripts` is trained as a job's file on a local Ray cluster, by workers that
take unequal parts of each batch, and by a plain torch loop over the same batches in one process. ``equal``: the largest
relative error of all weights, buffers and losses is at most 1e-5. ``refused``: with the right cause and a way out,
before the first step; where the message names a ``unit``, the script was trained with it and was equal. Any other
outcome makes the exit code 1. Linux only.

With ``--device twin`` the first worker is on a device whose tensors are apart from the CPU's and that has no float64
(:mod:`benchmarks.compatible.accelerator`): what would fail on a GPU fails there. Scripts in float64 do, too, and torch
has no LSTM for it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.compatible.running import Lab, Outcome, Row, Way
from benchmarks.compatible.scripts import AREAS
from benchmarks.compatible.table import SCRIPTS
from tests.training import loopback, workers
from tests.training.coordinators import Coordinators

NAMES = [area.__name__.rpartition(".")[2] for area in AREAS]


@contextlib.contextmanager
def laboratory() -> Iterator[Lab]:
    """Start a cluster of its own; its workers have loaded torch, Ray and the engine."""
    with (
        tempfile.TemporaryDirectory(prefix="ht", dir="/tmp") as folder,
        workers.forking(Path(folder)) as stub,
        loopback.running("abc", stub=stub) as cluster,
        Coordinators(cluster.folder, cluster.environment) as coordinators,
    ):
        yield Lab(cluster, coordinators)


def line(row: Row) -> str:
    """Return one row of the table."""
    error = f"{row.error:.1e}" if row.error == row.error else ""
    return f"{row.script:22} {row.way!s:30} {row.outcome:8} {error:>8} {row.seconds:5.1f}  {row.says}"


def summary(rows: Sequence[Row]) -> str:
    """Return how many scripts of each outcome there were, weighted by how common they are, and the largest error."""
    parts = []
    for outcome in Outcome:
        names = [row.script for row in rows if row.outcome is outcome]
        parts.append(f"{len(names)} {outcome} (weight {sum(SCRIPTS[name].common for name in names)})")
    return (
        f"{', '.join(parts)}; largest error {max((row.error for row in rows if row.error == row.error), default=0):.1e}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 when an outcome may not be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compatibility", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SCRIPTS), help="scripts, with commas between (default: all)")
    parser.add_argument("--areas", default=",".join(NAMES), help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--workers", default="2,3", help="of 2 and 3 (default: both)")
    parser.add_argument("--strategy", default="sync", help="of sync and allreduce, with commas between")
    parser.add_argument("--kill", action="store_true", help="a worker is killed in a step")
    parser.add_argument("--device", default="cpu", help="of the first worker: cpu, cuda:0, or twin")
    parser.add_argument("--json", type=Path, help="add the rows to this file, as lines of JSON")
    options = parser.parse_args(arguments)
    if unknown := set(options.only.split(",")) - set(SCRIPTS):
        parser.error(f"no script {', '.join(sorted(unknown))}; there are {', '.join(SCRIPTS)}")
    scripts = [SCRIPTS[name] for name in options.only.split(",") if SCRIPTS[name].area in options.areas.split(",")]
    ways = [
        Way(workers=int(count), strategy=strategy, killed=options.kill, device=options.device)
        for strategy in options.strategy.split(",")
        for count in options.workers.split(",")
    ]
    rows: list[Row] = []
    torch.set_num_threads(1)
    with laboratory() as lab, tempfile.TemporaryDirectory(prefix="compatibility") as folder:
        for way in ways:
            for script in scripts:
                rows.append(lab.carry_out(script, way, Path(folder) / f"run{len(rows)}"))
                print(line(rows[-1]), flush=True)
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps(dataclasses.asdict(rows[-1])) + "\n")
    for way in ways:
        print(f"{way}: {summary([row for row in rows if row.way == way])}")
    return 1 if not rows or any(row.outcome is Outcome.WRONG for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
