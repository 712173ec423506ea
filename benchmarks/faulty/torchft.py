"""torchft 0.2.0 under the schedule that ours goes through: the same plan, job, devices and links.

Its closest equivalents: data parallel for ``sync``, LocalSGD for ``local_sgd``; its lighthouse for our coordinator, on
the same host, with the flags of its README. A loop on each host starts its replica, and the lighthouse, again as soon
as they end, and with the host when its power is back: what torchrun and a service manager would do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faulty import commits, schedule
from benchmarks.faulty.commits import Commits
from benchmarks.faulty.devices import Devices
from benchmarks.faulty.figures import Absence, Mark
from benchmarks.faulty.plan import Planned
from benchmarks.faulty.schedule import Course
from benchmarks.faulty.stage import BATCH, FIRST_STEPS, SETTINGS, STARTED_S
from benchmarks.peers import environment, runner, torchft_faults
from benchmarks.peers.torchft_faults import REPORT_FILE, Settings
from tests.lab.following import RunError
from tests.lab.lab import Lab
from tests.lab.machines import Host
from tests.lab.network import LabError

PACKAGE = "torchft"
EQUIVALENTS = {"sync": "ddp", "local_sgd": "localsgd"}
"""Which of torchft's ways stands beside which strategy of ours."""

ABOUT = {"ddp": "torchft 0.2.0 data parallel", "localsgd": "torchft 0.2.0 LocalSGD"}

LIGHTHOUSE = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
"""As in torchft's README; it looks for dead replicas with its own default, 5 s."""

LIGHTHOUSE_PROGRAM = "torchft_lighthouse"
LIGHTHOUSE_PORT = 29510
REPLICA_LOG, LIGHTHOUSE_LOG = "torchft.log", "lighthouse.log"
AGAIN_S = 0.5
"""Between the end of a process and its next start."""

LOOK_S = 0.2
LONGEST_S = 86_400.0
"""Of a loop; the lab ends it long before."""

_ENDED = "the loop's program has ended with"
_LOOP = f'log=$1; shift; while :; do "$@" >>~/"$log" 2>&1; echo "{_ENDED} $?" >>~/"$log"; sleep {AGAIN_S}; done'


class TorchftTraining:
    """torchft on a lab's hosts (:class:`benchmarks.faulty.execution.Training`)."""

    def __init__(self, lab: Lab, devices: Devices, variant: str, lighthouse: str) -> None:
        """Plan it; :meth:`start` starts it.

        Args:
            lab: the hosts.
            devices: what they train on.
            variant: ``ddp`` or ``localsgd``.
            lighthouse: name of the host that torchft's lighthouse runs on.

        Raises:
            RunError: torchft is not installed.
        """
        self.lab, self.devices = lab, devices
        self._variant, self._lighthouse = variant, lab.host(lighthouse)
        self._python, missing = environment.python_with(PACKAGE)
        if missing:
            raise RunError(f"{PACKAGE}: {missing}")
        self._local_steps = int(str(SETTINGS["local_sgd"]["local_steps"])) if variant == "localsgd" else 1

    def start(self) -> None:
        """Start all, and wait until all take part.

        Raises:
            RunError: they did not in time.
        """
        for host in self.lab.hosts:
            runner.ship(host)
            self.booted(host)
        deadline = time.monotonic() + STARTED_S
        while self.step < FIRST_STEPS or self.commits().missing():
            if time.monotonic() > deadline:
                logs = " / ".join(f"{host.name}: {_text(host, REPLICA_LOG)[-300:]}" for host in self.lab.hosts)
                raise RunError(f"torchft does not train on all hosts after {STARTED_S:.0f} s: {logs}")
            time.sleep(LOOK_S)

    def booted(self, host: Host) -> None:
        """Its loops start with a host."""
        if host is self._lighthouse:
            program = str(Path(self._python).with_name(LIGHTHOUSE_PROGRAM))
            _loop(host, LIGHTHOUSE_LOG, [program, *LIGHTHOUSE, "--bind", f"[::]:{LIGHTHOUSE_PORT}"])
        settings = Settings(
            variant=self._variant,
            rank=self.lab.hosts.index(host),
            hosts=len(self.lab.hosts),
            lighthouse=f"http://{self._lighthouse.address}:{LIGHTHOUSE_PORT}",
            batch=BATCH,
            local_steps=self._local_steps,
        )
        words = json.dumps(dataclasses.asdict(settings))
        _loop(host, REPLICA_LOG, runner.command(self._python, torchft_faults.__name__, words))

    @property
    def step(self) -> int:
        """The newest committed step."""
        return self.commits().newest

    def check(self) -> None:
        """It never ends for good: its loops start it again."""

    def progress(self) -> tuple[Mark, ...]:
        """Committed steps, each when it was committed first."""
        return self.commits().progress()

    def away(self) -> tuple[Absence, ...]:
        """From the first step that the others commit without a host until the first one with it."""
        return self.commits().away(time.time())

    def await_all(self, seconds: float) -> frozenset[str]:
        """Until all have committed one of the newest steps: no event says so, so reports are read again and again."""
        deadline = time.monotonic() + seconds
        while (missing := self.commits().missing()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return missing

    def kill_coordinator(self) -> None:
        """The lighthouse."""
        (pid,) = [
            one.pid
            for one in self._lighthouse.processes()
            if LIGHTHOUSE_PROGRAM in {Path(word).name for word in one.argv[:2]}  # a script: Python stands before it
        ]
        self._lighthouse.signal(pid, signal.SIGKILL)

    def ended(self) -> int:
        """How often a process ended, and was started again by its loop."""
        logs = [*(_text(host, REPLICA_LOG) for host in self.lab.hosts), _text(self._lighthouse, LIGHTHOUSE_LOG)]
        return sum(log.count(_ENDED) for log in logs)

    def commits(self) -> Commits:
        """All that the replicas have reported so far."""
        part = BATCH // len(self.lab.hosts) * self._local_steps
        return commits.read({host.name: _text(host, REPORT_FILE) for host in self.lab.hosts}, part)


def _loop(host: Host, log: str, command: Sequence[str]) -> None:
    """Start a command on the host again and again, until the host has no power; it ends with the lab at the latest."""

    def run() -> None:
        with contextlib.suppress(LabError, subprocess.TimeoutExpired):
            host.exec(["sh", "-c", _LOOP, "loop", log, *command], deadline=LONGEST_S)

    threading.Thread(target=run, daemon=True).start()


def _text(host: Host, name: str) -> str:
    file = host.home / name
    return file.read_text(errors="replace") if file.exists() else ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How torchft went through a schedule.

    Attributes:
        about: which of its ways.
        course: as for ours.
        left_out: samples of committed steps that no replica took, by torchft's own counts.
        twice: samples that a replica took part with twice.
        ended: processes that their loops started again.
    """

    about: str
    course: Course
    left_out: int
    twice: int
    ended: int


def carry_out(
    lab: Lab,
    devices: Devices,
    strategy: str,
    plan: Sequence[Planned],
    *,
    head: str,
    seconds: float,
    quiet_s: float = schedule.QUIET_S,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """The equivalent in torchft of ``strategy`` through the ``plan`` that ours went through with the head ``head``.

    Raises:
        RunError: it is not installed, or did not start.
    """
    variant = EQUIVALENTS[strategy]
    training = TorchftTraining(lab, devices, variant, head)
    training.start()
    course = schedule.go_through(training, plan, seconds=seconds, quiet_s=quiet_s, say=say)
    return Outcome(
        about=ABOUT[variant],
        course=course,
        left_out=training.commits().left_out(),
        twice=training.commits().twice(),
        ended=training.ended(),
    )
