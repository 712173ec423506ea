"""Do the models, losses, data and optimizers that PyTorch users bring train as in plain torch, or are they refused?

``python -m benchmarks.compatibility [--only NAMES] [--areas NAMES] [--workers 2,3] [--strategy sync,allreduce] [--kill]
[--device twin|cuda:0] [--json FILE] [--markdown FILE]``

The matrix can be made in parts: each call adds its rows to the file of ``--json``, and ``--markdown`` has all of them.

Each case is a job as a user writes it, trained by the script API on a local Ray with unequal workers, and by a plain
torch loop over the same batches in one process. ``equal``: the largest relative error of all weights, buffers and of
the final loss is at most 1e-5. ``itself``: with random numbers in the model, the weights are the same bit by bit when
it is run again. ``refused``: a clear error before the first step. ``ended``: a clear error once it shows. Any other
outcome makes the exit code 1.

With ``--device twin`` the first worker is on a device whose tensors are apart from the CPU's and that has no float64
(:mod:`benchmarks.compatible.accelerator`): what would fail on a GPU fails there. Cases in float64 do, too, and torch
has no LSTM for it. On a GPU (``--device cuda:0``) float32 is what it is on the CPU with ``NVIDIA_TF32_OVERRIDE=0``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from benchmarks.compatible import (
    data,
    datasets,
    gradients,
    habits,
    hidden,
    hooks,
    huggingface,
    inputs,
    layers,
    losses,
    memory,
    models,
    objectives,
    optimizers,
    parameters,
    penalties,
    practice,
    randomness,
    recipes,
    restarts,
    rules,
    schedules,
    scripts,
    state,
    steps,
)
from benchmarks.compatible.case import CASES, ENDED, EQUAL, REFUSED, Case
from benchmarks.compatible.running import CRASH, WRONG, Row, Way, carry_out
from tests.training import workers

MODULES = (
    models,
    parameters,
    layers,
    gradients,
    huggingface,
    losses,
    objectives,
    penalties,
    randomness,
    restarts,
    state,
    hooks,
    memory,
    hidden,
    data,
    datasets,
    inputs,
    optimizers,
    rules,
    schedules,
    scripts,
    practice,
    recipes,
    steps,
    habits,
)
"""Importing them makes their cases."""

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def local_ray(modules: Sequence[str] = ()) -> Iterator[None]:
    """A Ray of our own on this computer, of one node, for all cases; its workers have ``modules`` loaded."""
    os.environ |= {
        "RAY_AUTH_MODE": "disabled",
        "RAY_prestart_worker_first_driver": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    import ray

    with (
        tempfile.TemporaryDirectory(prefix="ht", dir="/tmp") as folder,
        workers.forking(Path(folder), ("benchmarks.compatibility", *modules)) as stub,
        mock.patch.object(sys, "executable", str(stub)),
    ):
        ray.init(
            address="local",
            num_cpus=4,
            num_gpus=1,  # so many slots: a script's worker on any device but the CPU asks for one
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        try:
            yield
        finally:
            ray.shutdown()


def is_good(row: Row) -> bool:
    """Whether it is one of the outcomes that may be."""
    return row.outcome not in {WRONG, CRASH}


def rows(cases: Sequence[Case], ways: Sequence[Way]) -> Iterator[Row]:
    """Run the cases each way; those that kill a worker only where the case is chosen for that."""
    loaded = any(case.area == huggingface.AREA for case in cases) and not any("cuda" in way.device for way in ways)
    modules = huggingface.MODULES if loaded else ()  # they begin to use the GPU, which a fork then can't
    with local_ray(modules), tempfile.TemporaryDirectory(prefix="compatibility") as folder:
        for number, (case, way) in enumerate((case, way) for case in cases for way in ways):
            if way.killed and not case.killed:
                continue
            yield carry_out(case, way, Path(folder) / f"run{number}")


def line(row: Row) -> str:
    """One row of the table."""
    error = f"{row.error:.1e}" if row.error == row.error else ""
    about = row.says or "+".join(map(str, row.slices))
    return f"{row.case:24} {row.way!s:28} {row.outcome:8} {error:>8} {row.seconds:5.1f}  {about}"


def markdown(found: Sequence[Row]) -> str:
    """A table for each area, and the message of each refused job."""
    ways = list(dict.fromkeys(str(row.way) for row in found))
    parts = []
    for area in dict.fromkeys(CASES[row.case].area for row in found):
        head = [f"## {area[0].upper()}{area[1:]}", "", f"| case | what it is | {' | '.join(ways)} |"]
        lines = [*head, "|---" * (2 + len(ways)) + "|"]
        for case in (case for case in CASES.values() if case.area == area):
            cells = [_cell(row) for row in found if row.case == case.name]
            if cells:
                lines.append(f"| {case.name} | {_described(case)} | {' | '.join(cells)} |")
        refusals = {
            row.case: row.says for row in found if row.outcome in (REFUSED, ENDED) and CASES[row.case].area == area
        }
        lines += ["", *(f"- **{name}**: {says}" for name, says in refusals.items())]
        parts.append("\n".join(lines).rstrip() + "\n")
    return "\n".join(parts)


def _described(case: Case) -> str:
    return (case.__doc__ or "").splitlines()[0].rstrip(".").replace("|", "/")


def _cell(row: Row) -> str:
    return f"equal, {row.error:.0e}" if row.outcome == EQUAL else row.outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; exit code 1 when an outcome may not be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compatibility", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases, with commas between (default: all)")
    parser.add_argument("--areas", default="", help="areas, with commas between (default: all)")
    parser.add_argument("--workers", default="2,3", help="of 2 and 3 (default: both)")
    parser.add_argument("--strategy", default="sync", help="of sync and allreduce, with commas between")
    parser.add_argument(
        "--device", default="cpu", help="of the first worker: cpu, cuda:0, or twin, a device with memory of its own"
    )
    parser.add_argument(
        "--kill", action="store_true", help="a worker is killed in the middle, where the case allows it"
    )
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--quick", action="store_true", help="only the cases that are run as a test")
    parser.add_argument("--json", type=Path, help="add the rows to this file, as lines of JSON")
    options = parser.parse_args(arguments)
    unknown = set(filter(None, options.only.split(","))) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    names, areas = options.only.split(",") if options.only else list(CASES), options.areas.split(",")
    cases = [CASES[name] for name in names if not options.areas or CASES[name].area in areas]
    cases = [case for case in cases if case.quick or not options.quick]
    if options.device == "twin":
        importlib.import_module("benchmarks.compatible.accelerator").register()
    ways = [
        Way(workers=int(workers), strategy=strategy, killed=options.kill, device=options.device)
        for strategy in options.strategy.split(",")
        for workers in options.workers.split(",")
    ]
    found = []
    for row in rows(cases, ways):
        found.append(row)
        print(line(row), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(row)) + "\n")
    bad = [row for row in found if not is_good(row)]
    print(f"{len(found)} runs of {len(cases)} cases, {len(bad)} not good, {sum(row.seconds for row in found):.0f} s")
    if options.markdown:
        options.markdown.write_text(markdown(found))
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
