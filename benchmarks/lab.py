"""Parts that the benchmarks on several hosts share: the lab, the task that all train, and the result of a run.

The hosts are those of ``tests/lab``: name spaces on this computer, each with a shaped link (Linux, root). Their devices
are simulated: computation is real, and stretched by a sleep to the pace of a device of the wanted speed (see
:mod:`remote_agent.training.worker.device.simulation`). Network traffic is real.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
        seconds: time of training.
        local_batch: samples of a step that a host makes alone; 0: ``batch`` / hosts.
        learning_rate: for all ways; 0: the job's own.
        evaluated: the validation loss at the end is wanted.
    """

    job: str
    job_class: str
    batch: int
    seconds: float
    local_batch: int = 0
    learning_rate: float = 0.0
    evaluated: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one run.

    Attributes:
        name: peer, or ``ours:strategy``.
        seconds: of our own run's training.
        steps: of the first host.
        samples: of all hosts.
        samples_per_second: of all hosts together.
        sent: bytes that each host's network device sent in that time.
        loss: validation loss at the end; None: not evaluated.
        error: reason why there is no result; "" if there is one.
        reference: speed of this computer as our own run measured it; None for a peer, which is given one.
    """

    name: str
    seconds: float = 0.0
    steps: int = 0
    samples: int = 0
    samples_per_second: float = 0.0
    sent: tuple[int, ...] = ()
    loss: float | None = None
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
    """The last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def simulated_notes(rate_mbit: float, speeds: Sequence[float]) -> list[str]:
    """Lines under a table that tell what is simulated."""
    ratio = " : ".join(f"{speed:g}" for speed in speeds)
    return [
        f"{time.strftime('%Y-%m-%d')}, torch {torch.__version__}; {len(speeds)} hosts as name spaces on one computer.",
        f"Simulated: device speeds {ratio} by a sleep (each {HEADROOM:g}x slower than its share of this computer's).",
        f"Simulated: links of {rate_mbit:g} Mbit/s each way, by tc.",
        "Real: the computation, the network traffic, the optimizer's step (not stretched, for anybody).",
    ]
