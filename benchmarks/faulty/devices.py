"""The hosts' devices, each as fast as a file on its host says, and the processes that train on them.

A process that trains the job of :mod:`benchmarks.faulty.job` is paced by that file, and leaves its PID to be killed by:
ours and the peers are struck by the same hand.
"""

from __future__ import annotations

import signal
import time

from benchmarks.faulty.job import PACE_FILE, WORKER_FILE
from tests.lab.lab import Lab
from tests.lab.machines import Host

PACES = (0.004, 0.006, 0.009, 0.006, 0.012)
"""Seconds a sample on each host's device, by a sleep."""

ALIKE = (0.006,) * len(PACES)
"""For who cuts a batch evenly: on unlike devices a slow host's absence would count as a gain."""


class Devices:
    """The devices of a lab's hosts.

    Attributes:
        paces: seconds a sample, by host.
    """

    def __init__(self, lab: Lab, paces: tuple[float, ...] = PACES) -> None:
        self.paces = {host.name: pace for host, pace in zip(lab.hosts, paces, strict=False)}
        for host in lab.hosts:
            (host.home / PACE_FILE).write_text(str(self.paces[host.name]))

    @property
    def parts(self) -> dict[str, float]:
        """Each host's part of the capacity: its speed alone (samples/s) over the sum of all."""
        whole = sum(1 / pace for pace in self.paces.values())
        return {host: 1 / pace / whole for host, pace in self.paces.items()}

    def set_speed(self, host: Host, factor: float) -> float:
        """The host's device takes ``1 / factor`` times what it usually takes; returns seconds since the epoch."""
        fresh = host.home / f"{PACE_FILE}.new"
        fresh.write_text(str(self.paces[host.name] / factor))
        fresh.replace(host.home / PACE_FILE)
        return time.time()

    def kill_worker(self, host: Host) -> float:
        """SIGKILL for the process that trains there; returns seconds since the epoch.

        Raises:
            LabError: there is none at the moment.
        """
        pid = int((host.home / WORKER_FILE).read_text())
        now = time.time()
        host.signal(pid, signal.SIGKILL)
        return now
