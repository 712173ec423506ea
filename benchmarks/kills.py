"""Commands that are killed at random moments: the next one goes on from there, and ``down`` leaves nothing.

``python -m benchmarks.kills [--kills 30] [--seed N] [--network wireguard]`` (root: it builds the lab). Two hosts with
nothing but a Python; ``bootstrap --from-laptop`` (of thin wheels), ``up`` and ``down --purge`` one after the other,
each killed (SIGKILL) at a moment between its start and the time that it takes. Then the same command, or in half of
the cases after an ``up`` at once ``down``, has to end well. A line for each kill, and for each that came too late,
which does not count; exit code 1 where something was left or failed.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remote_agent.protocol import MESH_INTERFACE
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui
from tests.wheels import thin_wheels

NAMES = ("mercer", "crosby")
ENDS_WITHIN = 60.0
"""Seconds for what a killed command had ordered on hosts to end."""


@dataclass(frozen=True)
class Kill:
    """One kill: ``after_s`` seconds (None: the command was done before). ``mistakes``: what was not as it should be."""

    command: str
    after_s: float | None
    next: str
    mistakes: tuple[str, ...]


class Victim:
    """The product on a laptop, with hosts that have nothing but a Python."""

    def __init__(self, lab: Lab, network: str = "direct") -> None:
        self._lab = lab
        without = {name: {"python": None} for name in NAMES}
        self._product = HeteroTui(lab.laptop, lab.inventory(without, network=network))
        wheels = thin_wheels(lab.laptop.home / "wheelhouse")
        self._words: dict[str, tuple[str, ...]] = {
            "bootstrap": ("bootstrap", "--from-laptop", "--wheels", str(wheels)),
            "up": ("up",),
            "down": ("down", "--yes", "--purge"),
        }

    def seconds(self) -> dict[str, float]:
        """How long each command takes that is let go on to its end."""
        found = {}
        for command in self._words:
            began = time.monotonic()
            mistakes = self.whole(command)
            if mistakes:
                raise RuntimeError(f"{command}: {mistakes}")
            found[command] = time.monotonic() - began
        return found

    def kill(self, command: str, after_s: float) -> bool:
        """Start it, and kill it so many seconds later; false where it was done before."""
        with self._product.start(*self._words[command]) as process:
            try:
                process.communicate(timeout=after_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        return process.returncode == -signal.SIGKILL

    def whole(self, command: str) -> tuple[str, ...]:
        """Run a command to its end: what is wrong then."""
        done = self._product.run(*self._words[command], "--json")
        mistakes = [] if done.returncode == 0 else [f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"]
        return (*mistakes, *(self._left() if command == "down" else ()))

    def _left(self) -> Iterator[str]:
        ends = time.monotonic() + ENDS_WITHIN
        for host in self._lab.hosts:
            while (alive := host.processes()) and time.monotonic() < ends:
                time.sleep(0.05)
            yield from (f"{host.name}: {' '.join(process.argv)[:80]}" for process in alive)
            yield from (f"{host.name}: port {port}" for port in host.listening_ports())
            yield from (f"{host.name}: {path}" for path in host.home.rglob(".hetero-tui/*"))
            links = host.exec(["ip", "-o", "link"]).stdout.splitlines()
            yield from (f"{host.name}: {link}" for link in links if MESH_INTERFACE in link)
            sockets = host.exec(["sh", "-c", "ls /run/wireguard 2>/dev/null"]).stdout.split()
            yield from (f"{host.name}: /run/wireguard/{name}" for name in sockets)
        yield from (f"laptop: {path}" for path in self._lab.laptop.home.glob(".local/state/hetero-tui/*"))


def kills(lab: Lab, count: int, seed: int, network: str = "direct") -> Iterator[Kill]:
    """``count`` kills, each with what came of it."""
    chance = random.Random(seed)  # noqa: S311 - moments, no secrets
    victim = Victim(lab, network)
    takes = victim.seconds()
    print(f"undisturbed: {', '.join(f'{name} {taken:.1f} s' for name, taken in takes.items())}", file=sys.stderr)
    done = 0
    while done < count:
        for command in takes:
            if done == count:
                break
            after_s = chance.uniform(0, takes[command])
            killed = victim.kill(command, after_s)
            following = "down" if command == "up" and chance.random() < 0.5 else command
            yield Kill(command, after_s if killed else None, following, victim.whole(following))
            done += killed  # one that came too late does not count
            if following != command:  # there is nothing for a `down` to take away
                for each in ("bootstrap", "up"):
                    victim.whole(each)
    if mistakes := victim.whole("down"):
        yield Kill("down", None, "down", mistakes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--network", choices=["direct", "wireguard"], default="direct")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    bad = 0
    with Lab([HostSpec(name=name, cpus=1) for name in NAMES], rate_mbit=1000) as lab:
        for number, kill in enumerate(kills(lab, options.kills, options.seed, options.network), start=1):
            moment = f"killed after {kill.after_s:5.1f} s" if kill.after_s is not None else "was done before"
            print(
                f"{number:3} {kill.command:9} {moment}, then {kill.next:9}: {'; '.join(kill.mistakes) or 'well'}",
                flush=True,
            )
            bad += bool(kill.mistakes)
    print(f"{bad} went wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
