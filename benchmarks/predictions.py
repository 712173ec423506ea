"""How right the planner's model is of what the product exchanges, on a simulated clock.

``python -m benchmarks.predictions [--only PATTERN]``.

Runs of the real coordinator, workers and shards on a simulated clock, with simulated links and devices
(``tests.simulation``): a step of ``sync`` with each set of hosts, predicted beside what it takes there, and of each
fleet and model the set that is chosen beside the best. The fastest device takes 2.45 s for a step alone, whatever the
model. What processors and threads take is not in it, and no measurement's error, nor ``allreduce``, as gloo itself is
simulated there: see ``benchmarks.planner``.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from tests.simulation.predictions import Compared, compared
from tests.simulation.world import HOSTS, many

RATES = {"1000": 118e6, "100": 11.8e6, "10": 1.18e6}
"""Mbit/s, and bytes/s that are left of them."""

SPEEDS = ("1:1:1", "1:0.4:0.2", "1:0.1:0.1")

MODELS = {"0.1M": 100_000, "3M": 3_000_000, "17M": 17_000_000}

SETS = (HOSTS[:1], HOSTS[:2], HOSTS)
"""Hosts: the fastest alone, with the next one, and all."""

OTHERS: dict[str, dict[str, Any]] = {
    "local_sgd": {"strategy": "local_sgd", "local_steps": 10, "local_batch": 8},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=__doc__.splitlines()[0])
    parser.add_argument("--exact", action="store_true", help="`sync` only")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="fleets and models RATE/SPEEDS/MODEL like this")
    options = parser.parse_args(arguments)
    off: list[float] = []
    kept: list[float] = []
    right = 0
    print("| Mbit/s, speeds, model | alone | 2 hosts | 3 hosts | others with 3 | chosen | best | of its speed |")
    print("|---|---|---|---|---|---|---|---|")
    for name in (f"{rate}/{speeds}/{model}" for rate in RATES for speeds in SPEEDS for model in MODELS):
        if not fnmatch.fnmatch(name, options.only):
            continue
        with many():
            found, others = _of(*name.split("/"), exact=options.exact)
        off += [abs(each.off) for each in (*found.values(), *others.values())]
        best = min(found, key=lambda hosts: found[hosts].simulated_s)
        chosen = "".join(found[HOSTS].chosen)
        if len(chosen) == 2:  # two alike: which of them does not matter
            chosen = SETS[1]
        kept.append(found[best].simulated_s / found[chosen].simulated_s)
        right += (len(chosen) == 1) == (len(best) == 1)
        said = [_times(took) for took in found.values()]
        said += [", ".join(f"{each} {_times(took)}" for each, took in others.items())]
        print(f"| {name} | {' | '.join(said)} | {len(chosen)} | {len(best)} | {kept[-1]:.2f} |", flush=True)
    if off:
        off.sort()
        print(f"\n{len(off)} predictions: median error {statistics.median(off):.1%}, 90 % of them within ", end="")
        print(f"{off[int(0.9 * (len(off) - 1))]:.1%}, the worst {off[-1]:.1%}. What is chosen has")
        print(
            f"{statistics.median(kept):.2f} of the best set's speed (median), {min(kept):.2f} at worst. One machine is"
        )
        print(f"chosen where it is best, and nowhere else, in {right} of {len(kept)}.")
    return 0


def _of(rate: str, speeds: str, model: str, *, exact: bool) -> tuple[dict[str, Compared], dict[str, Compared]]:
    """``sync`` with each set of hosts, and the other strategies with all."""
    about = (MODELS[model], RATES[rate], [float(speed) for speed in speeds.split(":")])
    found = {hosts: compared({"strategy": "sync"}, *about, hosts=hosts) for hosts in SETS}
    return found, {each: compared(settings, *about) for each, settings in ({} if exact else OTHERS).items()}


def _times(took: Compared) -> str:
    return f"{took.predicted_s:.3g} / {took.simulated_s:.3g} s"


if __name__ == "__main__":
    sys.exit(main())
