"""A plan of faults, carried out on what trains on a lab's hosts: ours or a peer, struck by the same hand."""

from __future__ import annotations

import functools
import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from benchmarks.faulty.devices import Devices
from benchmarks.faulty.figures import Absence, Mark
from benchmarks.faulty.plan import Planned
from benchmarks.faulty.strikes import SLOW_FACTOR
from tests.lab.lab import Lab
from tests.lab.machines import Host
from tests.lab.network import LabError

AGAIN_S, PATIENCE_S = 0.5, 120.0
"""A fault whose victim is just being started waits for it: between two looks, and at most."""

WELL_S = 180.0
"""After the last fault, until all are back."""


class Training(Protocol):
    """What is struck: hosts that train together, and what a schedule wants to know of them."""

    @property
    def lab(self) -> Lab:
        """The hosts."""

    @property
    def devices(self) -> Devices:
        """What they train on."""

    @property
    def step(self) -> int:
        """The newest step."""

    def check(self) -> None:
        """Nothing happens while the training goes on.

        Raises:
            RunError: it has ended.
        """

    def progress(self) -> tuple[Mark, ...]:
        """The steps so far, each when it was made for the first time."""

    def away(self) -> tuple[Absence, ...]:
        """When each host was known to take no part, until now."""

    def await_all(self, seconds: float) -> frozenset[str]:
        """Wait until every host takes part again, at most so long; returns those that do not."""

    def kill_coordinator(self) -> None:
        """SIGKILL for the one process that all need.

        Raises:
            ValueError: there is none at the moment.
        """

    def booted(self, host: Host) -> None:
        """What starts when this host boots is started."""


class Execution:
    """Does what is planned, when it is due; a context manager that plugs everything in again.

    Attributes:
        absences: of hosts without power or cable, and of the part that a slow device lacks.
        struck: (time, kind) of each fault.
        torn: what went wrong, in words.
    """

    def __init__(self, training: Training, say: Callable[[str], None]) -> None:
        self.absences: list[Absence] = []
        self.struck: list[tuple[float, str]] = []
        self.torn: list[str] = []
        self._training, self._say = training, say
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._booting = ThreadPoolExecutor(1, thread_name_prefix="boot")
        self._coming: list[Future[None]] = []
        self._begin = 0.0

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *_: object) -> None:
        self._booting.shutdown(wait=True)
        for host in self._training.lab.hosts:
            if host.is_on:
                host.mend()
            self._training.devices.set_speed(host, 1.0)

    def carry_out(self, plan: Sequence[Planned], seconds: float) -> float:
        """All of it; returns when it began, in seconds since the epoch, once ``seconds`` are over.

        Raises:
            RunError: the training has ended.
        """
        self._begin = time.time()
        for one in plan:
            self._at(self._begin + one.at, functools.partial(self._strike, one))
        self._at(self._begin + seconds, lambda: None)
        while self._due:
            at, _, action = heapq.heappop(self._due)
            time.sleep(max(0.0, at - time.time()))  # the schedule's own clock
            self._training.check()
            action()
        return self._begin

    def recover(self) -> None:
        """Wait until all are back; those that are not in time are named in :attr:`torn`.

        Raises:
            RunError: the training has ended.
        """
        for coming in self._coming:
            coming.result(WELL_S)
        missing = self._training.await_all(WELL_S)
        if missing:
            self.torn.append(f"{', '.join(sorted(missing))} not back within {WELL_S:.0f} s")

    def _at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), action))

    def _strike(self, fault: Planned, waited: float = 0.0) -> None:
        host = self._training.lab.host(fault.host)
        try:
            {
                "worker": self._kill_worker,
                "cut": self._cut,
                "slow": self._slow,
                "power": self._power,
                "coordinator": self._kill_coordinator,
            }[fault.kind](host, fault)
        except (LabError, ValueError, OSError) as error:
            if waited > PATIENCE_S:
                self.torn.append(f"{fault.kind} of {fault.host} could not be done: {error}")
            else:
                self._at(time.time() + AGAIN_S, lambda: self._strike(fault, waited + AGAIN_S))
            return
        now = time.time()
        self.struck.append((now, fault.kind))
        long = f" for {fault.lasts:.0f} s" if fault.lasts else ""
        self._say(f"  {now - self._begin:6.1f} s: {fault.kind} {fault.host}{long}, step {self._training.step}")

    def _kill_worker(self, host: Host, fault: Planned) -> None:
        self._training.devices.kill_worker(host)

    def _kill_coordinator(self, host: Host, fault: Planned) -> None:
        self._training.kill_coordinator()

    def _cut(self, host: Host, fault: Planned) -> None:
        begin = time.time()
        host.cut()

        def mend() -> None:
            host.mend()
            self.absences.append(Absence(host.name, begin, time.time()))

        self._at(begin + fault.lasts, mend)

    def _slow(self, host: Host, fault: Planned) -> None:
        begin = self._training.devices.set_speed(host, SLOW_FACTOR)

        def cool() -> None:
            end = self._training.devices.set_speed(host, 1.0)
            self.absences.append(Absence(host.name, begin, end, 1 - SLOW_FACTOR))

        self._at(begin + fault.lasts, cool)

    def _power(self, host: Host, fault: Planned) -> None:
        begin = time.time()
        host.pull_plug()

        def switch_on() -> None:
            host.boot()  # by this thread: the kernel ends a host of the lab with the thread that started it
            self._coming.append(self._booting.submit(answers))

        def answers() -> None:
            self._training.lab.await_hosts(host)
            self.absences.append(Absence(host.name, begin, time.time()))
            self._training.booted(host)

        self._at(begin + fault.lasts, switch_on)
