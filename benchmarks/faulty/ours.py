"""Our own run under a schedule of faults.

No step by hand: a host whose power is back is taken in by the ``up`` that an attached laptop runs for it by itself, as
nothing of ours starts when a machine boots. A coordinator that was killed has a successor without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.faulty import figures, schedule
from benchmarks.faulty.devices import Devices
from benchmarks.faulty.figures import Absence, Mark
from benchmarks.faulty.plan import KINDS, planned
from benchmarks.faulty.schedule import Course
from benchmarks.faulty.stage import Stage, Verdict
from remote_agent import protocol
from tests.lab.following import Following, RunError
from tests.lab.lab import Lab
from tests.lab.machines import Host

CHECKPOINT_EVERY = 40


class OurTraining:
    """A run of ours with a laptop attached (:class:`benchmarks.faulty.execution.Training`)."""

    def __init__(self, stage: Stage, following: Following) -> None:
        self._stage, self._following = stage, following

    @property
    def lab(self) -> Lab:
        """The hosts."""
        return self._stage.lab

    @property
    def devices(self) -> Devices:
        """What they train on."""
        return self._stage.devices

    @property
    def step(self) -> int:
        """The newest step."""
        return self._following.step

    def check(self) -> None:
        """Nothing happens while the run is well."""
        self._following.check()

    def progress(self) -> tuple[Mark, ...]:
        """The steps that had not been made before."""
        return figures.progress(self._following.events)

    def away(self) -> tuple[Absence, ...]:
        """From the word that a worker is lost until it joins, or is in a new plan."""
        return figures.away_spans(self._following.events, (host.name for host in self.lab.hosts), time.time())

    def await_all(self, seconds: float) -> frozenset[str]:
        """Until a step has all hosts in it."""
        every = frozenset(host.name for host in self.lab.hosts)
        deadline = time.monotonic() + seconds
        missing = every
        while missing:
            left = deadline - time.monotonic()
            try:
                step = self._following.until(protocol.Step, max(left, 0.0), after=len(self._following.events))
            except RunError:
                self.check()
                return missing
            missing = every - {worker.host for worker in step.workers}
        return missing

    def kill_coordinator(self) -> None:
        """The run's own process on its head."""
        self._stage.kill_coordinator(self.lab.host(self._following.head))

    def booted(self, host: Host) -> None:
        """Nothing of ours starts with a host."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How our run went through a schedule: its strategy, its head at the beginning, its course, and its end."""

    strategy: str
    head: str
    course: Course
    verdict: Verdict

    @property
    def is_good(self) -> bool:
        """Nothing was lost, doubled or torn, and enough throughput was kept."""
        return self.course.is_good and self.verdict.is_good


def carry_out(
    stage: Stage,
    strategy: str,
    *,
    seed: int,
    faults: int,
    seconds: float,
    kinds: Sequence[str] = tuple(KINDS),
    quiet_s: float = schedule.QUIET_S,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Train for ``seconds`` with so many random faults (:func:`benchmarks.faulty.schedule.go_through`).

    Raises:
        RunError: the run ended, or did not stop when it was told to.
    """
    with stage.train(strategy, checkpoint_every=CHECKPOINT_EVERY) as following:
        head = following.head
        hosts = (head, *(host.name for host in stage.others(following)))
        plan = planned(seed, faults, seconds, hosts, kinds)
        course = schedule.go_through(OurTraining(stage, following), plan, seconds=seconds, quiet_s=quiet_s, say=say)
        verdict = stage.finish(following, strategy)
    return Outcome(strategy=strategy, head=head, course=course, verdict=verdict)


def lines(outcome: Outcome) -> list[str]:
    """For people."""
    return [f"{outcome.strategy}: {outcome.verdict.words}", *schedule.lines(outcome.course)]
