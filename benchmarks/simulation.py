"""Many runs with random faults on a simulated clock and network, one for each seed.

``python -m benchmarks.simulation [--schedules N] [--strategy NAME]... [--first SEED] [--jobs N]``; ``--seed SEED`` for
one, with what happened in it; ``--planted`` for bugs that are put back: after how many schedules each is found.

The product's own code runs, line by line: the coordinator from ``engine.run`` on (start, plan, strategies, membership,
failure policy, heartbeat, joining, copies and their restoring, checkpoints, takeover), the workers' engines, the
parameter server with its shards, and the wire between them above the sockets. Ray, gloo, TCP, the clock, threads and
the devices are simulated (``tests/simulation``). See ``world.KINDS`` for the faults, which come several at once.
Checked is that each sample is counted once, that the weights are those of a plain loop (where slices are applied as
they come: that each sample was applied once), that no step takes longer than 25 seconds, that all hosts train at the
end, and that nothing is left behind. Exit code 1 where one fails.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.pool import Pool

import torch

from tests.simulation.planted import BUGS, MANY
from tests.simulation.world import WAYS, Outcome, many, shrunk, simulate

CHUNK, CHUNKS = 5, 20
"""Schedules that a process gets at once, and how often, until another one takes its place."""


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--seed", type=int, help="only this one, with its events")
    parser.add_argument("--strategy", choices=list(WAYS), action="append", help="one of those (default: all, in turn)")
    parser.add_argument("--planted", action="store_true", help="put bugs back, each alone, until one is found")
    options = parser.parse_args()
    ways = options.strategy or list(WAYS)
    if options.planted:
        return _look_for_planted(options.first, options.jobs)
    if options.seed is not None:
        outcome = simulate(options.seed, None, ways[0])
        _tell(outcome)
        print(*outcome.events, sep="\n")
        return int(bool(outcome.wrong))
    began, failed, steps, stalls = time.monotonic(), 0, 0, []
    seeds = range(options.first, options.first + options.schedules)
    wanted = [(seed, ways[number % len(ways)]) for number, seed in enumerate(seeds)]
    with _pool(options.jobs, _begin_few, CHUNKS) as pool:
        for outcome in pool.imap_unordered(_one, wanted, chunksize=CHUNK):
            steps += outcome.steps
            stalls.append(outcome.stall_s)
            if outcome.wrong:
                failed += 1
                _tell(shrunk(outcome))
    stalls.sort()
    seconds = time.monotonic() - began
    print(
        f"{len(stalls)} schedules, {steps:,} steps in {seconds:.0f} s; {failed} failed; longest step: median"
        f" {stalls[len(stalls) // 2]:.1f} s, 99 % {stalls[int(0.99 * len(stalls))]:.1f} s, most {stalls[-1]:.1f} s"
    )
    return int(failed > 0)


def _look_for_planted(first: int, jobs: int) -> int:
    """Say of each bug in :data:`BUGS` how many schedules it takes to find it."""
    missed = 0
    with _pool(jobs, _begin) as pool:
        for name, count in pool.imap(partial(_planted, first), BUGS):
            where = f"schedule {count} (seed {first + count - 1})" if count else f"not within {MANY} schedules"
            print(f"{name}: {BUGS[name].way}, {where}", flush=True)
            missed += count is None
    return int(missed > 0)


def _pool(jobs: int, begin: Callable[[], None], tasks: int | None = None) -> Pool:
    """Processes that carry out so many tasks each (None: all), forked from one that has loaded everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([simulate.__module__])
    return context.Pool(jobs, begin, maxtasksperchild=tasks)


_FOR_MANY = contextlib.ExitStack()  # kept: what a context that nothing refers to has set is undone at once


def _begin() -> None:
    """In a new process: it is for many schedules, to its end."""
    _FOR_MANY.enter_context(many())


def _begin_few() -> None:
    """In a new process: it ends before its garbage, a MB each schedule, is worth a look (a sixth of the time)."""
    gc.disable()
    torch.set_num_threads(1)


def _planted(first: int, name: str) -> tuple[str, int | None]:
    logging.disable()  # what goes wrong is what is wanted
    return name, BUGS[name].found(first)


def _one(wanted: tuple[int, str]) -> Outcome:
    seed, way = wanted
    return simulate(seed, None, way, tells=False)


def _tell(outcome: Outcome) -> None:
    print(f"{outcome.way}, seed {outcome.seed}: {outcome.wrong or 'well'}; {outcome.steps} steps", flush=True)
    print(*(f"  {fault}" for fault in outcome.faults), sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
