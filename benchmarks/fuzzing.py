"""Mutated answers of hosts against the laptop's parsers: only the typed error, and within 10 ms each.

``python -m benchmarks.fuzzing [--count 100000] [--seed 0]``

A probe's document or a line of a run's events is changed at random (bytes, values, structure) and parsed. The exit code
is 1, and the seed is printed, where anything but a value or a ``ProtocolError`` comes of it, or it takes too long.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from hetero_tui import answers
from hetero_tui.text import HostText
from remote_agent import protocol

LIMIT_S = 0.010
"""Seconds of processor time for one document."""

FACTS = json.dumps(
    {
        "probe": 1,
        "hostname": "mercer",
        "user": "me",
        "home": "/home/me",
        "os": {"system": "Linux", "release": "6.1", "name": "Debian 12", "machine": "x86_64"},
        "python": {"version": "3.11.7", "executable": "/usr/bin/python3", "prefix": "/usr"},
        "packages": {"ray": "2.60.0", "torch": "2.13.0+cu126", "safetensors": None},
        "torch_build": "cu126",
        "cpu": {"model": "CPU", "physical": 4, "logical": 8, "quota": 2.5},
        "memory": {"total_bytes": 16 << 30, "available_bytes": 8 << 30},
        "disk": {"path": "/home", "total_bytes": 100 << 30, "free_bytes": 50 << 30, "unwritable": ""},
        "accelerators": [
            {"kind": "cuda", "index": 0, "name": "TITAN X", "memory_bytes": 12 << 30, "driver": "550", "uuid": "GPU-1"}
        ],
        "addresses": [
            {"interface": "eth0", "address": "10.0.0.2", "prefix": 24, "speed_mbps": 1000},
            {"interface": "eth0", "address": "fd00::2", "prefix": 64, "speed_mbps": None},
        ],
        "machine": "0123456789abcdef",
        "clock": 1767225600.5,
        "free_ports": [6389, 8365],
        "problems": ["nvidia-smi is there but failed: exit 9"],
    },
    separators=(",", ":"),
)
"""What a probe prints."""

_WORKER = protocol.WorkerStep(
    worker="nas/cpu", host="nas", device="cpu", samples=64, compute_s=0.1, push_s=0.05, pull_s=0.05, wait_s=0.05
)
_SHARE = protocol.Share(worker="nas/cpu", host="nas", device="cpu", samples=64, speed=120.5)
EVENTS = tuple(
    protocol.encode(event)
    for event in (
        protocol.RunStarted(
            seq=1,
            time=1767225600.5,
            run="text-7f3a",
            job="text",
            host="mercer",
            iterations=100,
            batch_size=64,
            parameters=1000,
            config={"learning_rate": 0.1, "strategy": "sync"},
        ),
        protocol.PlanMade(seq=2, time=1767225601.5, strategy="sync", shares=(_SHARE,), reasons=("it is measured",)),
        protocol.Step(
            seq=3,
            time=1767225602.5,
            step=1,
            loss=2.5,
            samples=64,
            seconds=0.25,
            bytes_pushed=10,
            bytes_pulled=20,
            workers=(_WORKER,),
            scalars={"accuracy": 0.5},
        ),
        protocol.WorkerLost(
            seq=4, time=1767225603.5, worker="nas/cpu", host="nas", device="cpu", step=2, cause="killed"
        ),
        protocol.RunFailed(seq=5, time=1767225604.5, step=3, host="nas", cause="no", detail="a.py:3 in loss\n  1/0"),
    )
)
"""Lines of a run's history."""

_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**400,
    2**63,
    1e308,
    -1e-308,
    "",
    "three",
    "\x1b[2J",
    "\ud800",
    "é" * 3000,
    [],
    {},
    [[[[[]]]]],
    {"": {"": {}}},
    list(range(300)),
)
_PIECES = (
    *("NaN", "-Infinity", "1e999", "9" * 5000),
    *("\x00", "\x1b[31m", "\\ud800", "\\u009b", "é"),
    *('"', "{", "}", ",", "[" * 2000),
)


def mutated(seed: int) -> tuple[Callable[[HostText], object], HostText]:
    """A parser and what it is to parse; the same for the same ``seed``."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret is made
    which = chance.randrange(len(EVENTS) + 1)
    line = FACTS if which == len(EVENTS) else EVENTS[which]
    for _ in range(chance.randint(1, 4)):
        line = chance.choice((_replace_value, _insert, _cut, _flip))(line, chance)
    return (answers.facts if which == len(EVENTS) else answers.event), HostText(line)


def _replace_value(line: str, chance: random.Random) -> str:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return line
    places: list[tuple[Any, Any]] = []

    def collect(found: Any) -> None:
        if isinstance(found, dict | list):
            keys = found.keys() if isinstance(found, dict) else range(len(found))
            places.extend((found, key) for key in keys)
            for key in keys:
                collect(found[key])

    collect(document)
    if not places:
        return line
    within, key = chance.choice(places)
    if isinstance(within, dict) and chance.random() < 0.2:
        within[chance.choice(("\x1b[31m", "new", "time"))] = within.pop(key)
    else:
        within[key] = chance.choice(_VALUES)
    try:
        return json.dumps(document, ensure_ascii=chance.random() < 0.5, separators=(",", ":"))
    except ValueError:
        return line


def _insert(line: str, chance: random.Random) -> str:
    place = chance.randint(0, len(line))
    return line[:place] + chance.choice(_PIECES) + line[place:]


def _cut(line: str, chance: random.Random) -> str:
    start = chance.randint(0, len(line))
    return line[:start] + line[start + chance.randint(1, 30) :]


def _flip(line: str, chance: random.Random) -> str:
    if not line:
        return line
    place = chance.randrange(len(line))
    return line[:place] + chr(chance.randrange(0x250)) + line[place + 1 :]


def _seconds_of(parse: Callable[[HostText], object], text: HostText) -> float:
    began = time.thread_time()
    with contextlib.suppress(protocol.ProtocolError):
        parse(text)
    return time.thread_time() - began


def main() -> int:
    """Run as many as are asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.fuzzing", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    answers.facts(HostText(FACTS))  # the first one imports what it needs
    taken, refused, slowest, slow = 0, 0, 0.0, 0
    for seed in range(options.seed, options.seed + options.count):
        parse, text = mutated(seed)
        began = time.thread_time()
        try:
            parse(text)
            taken += 1
        except protocol.ProtocolError:
            refused += 1
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return 1
        seconds = time.thread_time() - began
        if seconds > LIMIT_S:  # what is slow is slow again; a collection of garbage is not
            seconds = min(seconds, _seconds_of(parse, text))
        slowest = max(slowest, seconds)
        if seconds > LIMIT_S:
            slow += 1
            print(f"seed {seed}: {seconds * 1000:.1f} ms")
    print(f"{options.count:,} documents: {taken:,} taken, {refused:,} refused; slowest {slowest * 1000:.1f} ms")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
