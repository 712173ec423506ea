"""From bare machines to a trained model, as a user does it: each command's time, in the lab (root on Linux).

``python -m benchmarks.from_nothing [--hosts 3]``. The hosts have a Python without ``venv``, ``ensurepip`` and ``pip``,
and no internet. Packages are thin wheels, which lead to this environment: what is measured is the product's own work,
not the transfer of gigabytes. The exit code is 1 if a command fails or leaves something behind, or if a second
``bootstrap`` changes something or takes more than :data:`SECOND_WITHIN`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.lab.lab import Lab
from tests.lab.machines import HostSpec
from tests.lab.product import HeteroTui, setting
from tests.wheels import thin_wheels

SECOND_WITHIN = 5.0
"""Seconds that a ``bootstrap`` may take that has nothing to do, for three hosts."""

STEPS = 20
NAMES = ("mercer", "crosby", "nas", "studio", "rack")

WITHOUT_VENV = (
    "mkdir -p /run/none; for package in venv ensurepip pip; do"
    " for place in /usr/lib/python3*/$package /usr/lib/python3/dist-packages/$package"
    f" {sys.base_prefix}/lib/python3*/$package {sys.base_prefix}/lib/python3*/site-packages/$package; do"
    ' if [ -d "$place" ]; then mount --bind /run/none "$place"; fi; done; done'
)
"""Shell commands for a host whose Pythons can make no environment."""


@dataclass(frozen=True)
class Done:
    """One command of the story: its time, and what was wrong with it."""

    words: str
    seconds: float
    mistakes: tuple[str, ...]


def story(lab: Lab, product: HeteroTui) -> Iterator[Done]:
    """Run each command to its end, one after the other."""
    wheels = ["--from-laptop", "--wheels", str(thin_wheels(lab.laptop.home / "wheelhouse"))]
    names = [host.name for host in lab.hosts]
    for words, changed in ((["bootstrap", *wheels], True), (["bootstrap"], False)):
        done, said = _run(product, *words, "--json")
        hosts = {host["name"]: host.get("changed") for host in json.loads(said)["hosts"]} if said else {}
        wrong = () if hosts == dict.fromkeys(names, changed) else (f"changed: {hosts}",)
        slow = not changed and done.seconds > SECOND_WITHIN
        yield Done(words[0], done.seconds, (*done.mistakes, *wrong, *(["it is too slow"] if slow else [])))
    yield _run(product, "up", "--json")[0]
    yield _run(product, "train", "digits", *setting({"num_iterations": STEPS, "strategy": "sync"}), "--json")[0]
    done, _ = _run(product, "down", "--purge", "--yes", "--json")
    left = [f"{host.name}: {' '.join(one.argv)[:80]}" for host in lab.hosts for one in host.processes()]
    left += [str(path) for host in lab.hosts for path in host.home.glob(".hetero-tui/*/env")]
    yield Done(done.words, done.seconds, (*done.mistakes, *left))


def _run(product: HeteroTui, *words: str) -> tuple[Done, str]:
    began = time.monotonic()
    done = product.run(*words)
    mistakes = () if done.returncode == 0 else (f"exit code {done.returncode}: {done.stderr.strip()[-800:]}",)
    return Done(words[0], time.monotonic() - began, mistakes), done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the story and print it; the exit code."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.from_nothing", description=description)
    parser.add_argument("--hosts", type=int, default=3, choices=range(1, len(NAMES) + 1))
    options = parser.parse_args(arguments)
    bad = False
    with Lab([HostSpec(name=name, arrange=WITHOUT_VENV) for name in NAMES[: options.hosts]], rate_mbit=1000) as lab:
        product = HeteroTui(lab.laptop, lab.inventory({host.name: {"python": None} for host in lab.hosts}))
        for done in story(lab, product):
            bad = bad or bool(done.mistakes)
            print(f"{done.seconds:6.1f} s  hetero-tui {done.words}", *done.mistakes, sep="\n    ", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
