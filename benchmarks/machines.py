"""How ``probe`` and ``down`` grow with the number of machines: embedded ones, on this computer.

``python -m benchmarks.machines [--counts 1,64] [--rounds 3]``. For each number: seconds by the clock, and seconds of
processor time, the laptop's (the command alone) and the machines' (SSH servers and what they run). All machines share
this computer's cores, so that the clock's seconds can't be less than the processor's over the number of cores: what the
commands themselves add is the laptop's part, and the time that a single machine would be waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

from hetero_tui.demo.machines import EmbeddedMachines, make_folder

COMMANDS = {"probe": ("probe", "--json"), "down": ("down", "--yes", "--json")}
ENDS_WITHIN = 300.0


class Cost(NamedTuple):
    """Seconds of one command."""

    clock: float
    laptop: float
    machines: float


def _spent(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


async def _run(inventory: Path, home: Path, words: tuple[str, ...]) -> Cost:
    environment = dict(os.environ) | {"HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[1])}
    began, own, children = time.monotonic(), _spent(resource.RUSAGE_SELF), _spent(resource.RUSAGE_CHILDREN)
    # A shell says what its child, the command, has spent.
    script = '"$@" >/dev/null || exit; times'
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", script, "sh", sys.executable, "-m", "hetero_tui", "--inventory", str(inventory), *words),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    stdout, _ = await asyncio.wait_for(process.communicate(), ENDS_WITHIN)
    clock = time.monotonic() - began
    if process.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {process.returncode}")
    laptop = sum(_seconds(word) for word in stdout.decode().splitlines()[-1].split())
    everything = _spent(resource.RUSAGE_SELF) + _spent(resource.RUSAGE_CHILDREN) - own - children
    return Cost(clock, laptop, everything - laptop)


def _seconds(word: str) -> float:
    minutes, _, rest = word.rstrip("s").partition("m")
    return 60 * float(minutes) + float(rest)


async def measure(count: int, rounds: int) -> dict[str, Cost]:
    """The median costs of each command with so many machines."""
    folder = make_folder()
    try:
        async with EmbeddedMachines(folder, speeds=(1.0,) * count) as machines:
            inventory, home = machines.write_inventory(), folder / "laptop"
            home.mkdir()
            found: dict[str, Cost] = {}
            for name, words in COMMANDS.items():
                costs = [await _run(inventory, home, words) for _ in range(rounds)]
                found[name] = Cost(*map(statistics.median, zip(*costs, strict=True)))
            return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machines", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--counts", default="1,64", help="numbers of machines; the first is what the others are set to")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command, whose median counts")
    options = parser.parse_args()
    counts = [int(word) for word in options.counts.split(",")]
    results = {count: asyncio.run(measure(count, options.rounds)) for count in counts}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("command  machines  clock s  laptop's CPU s  machines' CPU s  x clock")
    for name in COMMANDS:
        for count, costs in results.items():
            cost, first = costs[name], results[counts[0]][name]
            print(
                f"{name:7} {count:9} {cost.clock:8.2f} {cost.laptop:15.2f} {cost.machines:16.2f}"
                f" {cost.clock / first.clock:8.1f}"
            )


if __name__ == "__main__":
    main()
