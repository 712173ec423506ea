"""What the benchmarks on several hosts share: the lab, the task that all train, and what a run gives.

The hosts are those of ``tests/lab``: name spaces on this computer, each with a shaped link (Linux, root). Their devices
are simulated: computation is real, and stretched by a sleep to the pace of a device of the wanted speed (see
:mod:`remote_agent.training.worker.device.simulation`). Network traffic is real.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.worker.device.simulation import HEADROOM
from tests.lab.lab import Lab
from tests.lab.machines import HostSpec

NAMES = ("mercer", "crosby", "nas", "studio", "attic", "shed")

SETUP_DEADLINE = 240.0
"""Seconds that a run may take beside its training: start, meeting, evaluation, end."""

_COUNTERS = "/sys/class/net/eth0/statistics"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One training task, the same for all ways.

    Attributes:
        job: as ``hetero-tui train`` names it.
        job_class: the same job as ``module:Class``.
        batch: samples of one step, over all hosts together.
        seed: of the weights and of the samples' order.
        steps: most steps.
        seconds: longest time of training.
        snapshot_every: steps from one evaluated copy of the weights to the next; 0: none.
        round_steps: inner steps of a round, for peers that train in rounds.
        local_batch: samples of one inner step on one host, for those who make steps of their own; 0: ``batch`` / hosts.
        learning_rate: for all ways; 0: the job's own.
    """

    job: str
    job_class: str
    batch: int
    seed: int
    steps: int
    seconds: float
    snapshot_every: int
    round_steps: int
    local_batch: int = 0
    learning_rate: float = 0.0

    def step_samples(self, hosts: int, *, local: bool) -> int:
        """Samples of one step over so many hosts, for who makes (``local``) steps of its own or common ones."""
        return self.local_batch * hosts if local and self.local_batch else self.batch


@dataclass(frozen=True)
class Point:
    """The validation loss after ``time`` seconds of training."""

    time: float
    step: int
    samples: int
    validation_loss: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run gave.

    Attributes:
        name: peer, or ``ours:strategy``.
        about: its settings in words.
        points: validation losses, by time.
        seconds: from the start to the first host's last whole step.
        steps: of the first host.
        samples: of all hosts.
        samples_per_second: of all hosts together.
        sent: bytes that each host's network device sent in that time.
        error: why there is no result, in words; "" when there is one.
        reference: our own run's measurement of this computer; None for a peer, which is given one.
    """

    name: str
    about: str
    points: tuple[Point, ...] = ()
    seconds: float = 0.0
    steps: int = 0
    samples: int = 0
    samples_per_second: float = 0.0
    sent: tuple[int, ...] = ()
    error: str = ""
    reference: DeviceProfile | None = None


@dataclass(frozen=True)
class Fleet:
    """A lab and the speeds of its hosts' simulated devices."""

    lab: Lab
    speeds: tuple[float, ...]

    def sent_bytes(self) -> tuple[int, ...]:
        """Bytes that each host's network device has sent so far."""
        done = [host.exec(["cat", f"{_COUNTERS}/tx_bytes"]) for host in self.lab.hosts]
        return tuple(int(one.stdout) for one in done)


@contextlib.contextmanager
def open_fleet(rate_mbit: float, speeds: Sequence[float]) -> Iterator[Fleet]:
    """A lab of hosts with these simulated speeds and one processor each, on links of ``rate_mbit``; gone at the end."""
    specs = [HostSpec(name=name, simulated_speed=speed, cpus=1) for name, speed in zip(NAMES, speeds, strict=False)]
    with Lab(specs, rate_mbit=rate_mbit) as lab:
        yield Fleet(lab, tuple(speeds))


def job_of(plan: Plan) -> Any:
    """The plan's job, in this process."""
    module, _, name = plan.job_class.partition(":")
    return getattr(importlib.import_module(module), name)()


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def simulated_notes(rate_mbit: float, speeds: Sequence[float], reference: DeviceProfile) -> list[str]:
    """What is simulated, in lines for a table."""
    ratio = " : ".join(f"{speed:g}" for speed in speeds)
    base = f"{reference.speed:.1f} samples/s + {reference.overhead_s * 1e3:.1f} ms a step, one thread"
    return [
        f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__}; {len(speeds)} hosts as name spaces on one computer.",
        f"Simulated: device speeds {ratio} by a sleep (each {HEADROOM:g}x slower than its share of {base}).",
        f"Simulated: links of {rate_mbit:g} Mbit/s each way, by tc.",
        "Real: the computation, the network traffic, the optimizer's step (not stretched, for anybody).",
    ]


def write_csv(path: Path, kind: type[Any], rows: Sequence[Any]) -> None:
    """Write rows of one dataclass, with the names of its fields above them."""
    names = [each.name for each in fields(kind)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in rows)
