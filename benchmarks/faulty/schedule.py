"""Random faults in one run, from a seed: the plan of them (pure), its execution, and what was kept.

No step by hand: hosts whose power is back are taken in by ``up``, which a laptop runs for each of them by itself, as
nothing of ours starts when a machine boots. A laptop is attached all the time, and starts a coordinator that was
killed again.

**Throughput kept among live capacity** is ``samples / (rate * live seconds)``, from the first fault's turn to the last
one's end: ``samples`` of new steps (those made again count for nothing), ``rate`` the samples/s of an undisturbed run
with the same settings on the same lab, and live seconds the time, each second counted with the part of the capacity
(by the plan's shares) that was alive in it. It is given for two meanings of alive:

- *reachable*: the host has power and its cable is in; a slow device counts with its speed. All time that a process
  takes to start counts against us.
- *taking part*: besides, its worker is not known to be lost, or is back. This is a peer's live capacity: replicas that
  are up. Detection, stalls, and what the others lose by a fault count against us, and a killed coordinator all the time
  until steps are made again.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from benchmarks.faulty import figures
from benchmarks.faulty.figures import Absence, Mark
from benchmarks.faulty.following import FaultBenchError, Follower
from benchmarks.faulty.rows import SLOW_FACTOR
from benchmarks.faulty.stage import Stage, Verdict
from remote_agent import protocol
from tests.lab.machines import Host
from tests.lab.network import LabError

KINDS: Mapping[str, float] = {"worker": 5.0, "cut": 4.0, "slow": 3.0, "power": 2.0, "coordinator": 1.0}
"""Kinds of faults, and how often each comes beside the others."""

RECOVERY_S: Mapping[str, float] = {"worker": 10.0, "cut": 20.0, "slow": 5.0, "power": 45.0, "coordinator": 60.0}
"""After a fault's end its host is left alone for so long, so that a fault meets somebody who is there."""

LENGTH = (0.1, 0.7)
"""How long a cut, a slow time or a time without power is, as parts of the time between two faults."""

KEPT = 0.977
"""Least throughput kept among the live capacity that takes part: what torchft publishes for a schedule of this size."""

UNDISTURBED_S = 60.0
CHECKPOINT_EVERY = 40
AGAIN_S, PATIENCE_S = 0.5, 120.0
"""A fault whose victim is just being started waits for it: between two looks, and at most."""

WELL_S = 180.0
"""After the last fault, until everybody is back."""


@dataclass(frozen=True, order=True)
class Planned:
    """``at`` seconds after the beginning this happens to ``host``, for ``lasts`` seconds (0: it is a moment)."""

    at: float
    kind: str
    host: str
    lasts: float = 0.0


def planned(
    seed: int, faults: int, seconds: float, hosts: Sequence[str], kinds: Sequence[str] = tuple(KINDS)
) -> tuple[Planned, ...]:
    """So many faults within ``seconds``, by time; ``hosts[0]`` is the head, which keeps its power and its cable.

    Somebody is always left in peace, and nobody is struck while it recovers, unless all do.
    """
    dice = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    every = seconds / faults
    busy_until = dict.fromkeys((*hosts, "coordinator"), 0.0)
    found = []
    for number in range(faults):
        at = every * (number + dice.uniform(0.1, 0.5))
        free = [host for host in hosts if busy_until[host] <= at]
        possible = [
            (kind, host)
            for kind in kinds
            for host in (free if len(free) > 1 else [])
            if not (host == hosts[0] and kind in ("cut", "power"))
            and (kind != "coordinator" or (host == hosts[0] and busy_until["coordinator"] <= at))
        ]
        if possible:
            kind = dice.choices(kinds, [KINDS[kind] * any(kind == one for one, _ in possible) for kind in kinds])[0]
            host = dice.choice([host for one, host in possible if one == kind])
        else:
            kind, host = kinds[0], min(hosts, key=lambda host: busy_until[host])
        lasts = every * dice.uniform(*LENGTH) if kind in ("cut", "slow", "power") else 0.0
        busy_until["coordinator" if kind == "coordinator" else host] = at + lasts + RECOVERY_S[kind]
        found.append(Planned(at, kind, host, lasts))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a schedule went.

    Attributes:
        strategy: the run's.
        plan: what was to happen, all of which did.
        seconds: of the schedule.
        samples: of new steps in that time.
        kept: by meaning of alive (see the module); empty where no rate was given.
        lost_s: seconds of training that each kind of fault cost, beside the capacity that took no part.
        stall: the longest time between two new steps over the median one.
        verdict: on the run.
        torn: what went wrong on the way.
    """

    strategy: str
    plan: tuple[Planned, ...]
    seconds: float
    samples: int
    kept: Mapping[str, float] = field(default_factory=dict)
    lost_s: Mapping[str, float] = field(default_factory=dict)
    stall: float
    verdict: Verdict
    torn: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Nothing was lost, doubled or torn, and enough throughput was kept."""
        return self.verdict.is_good and not self.torn and self.kept.get("taking part", 1.0) >= KEPT


def undisturbed(stage: Stage, strategy: str, seconds: float = UNDISTURBED_S) -> float:
    """Samples/s of a run without a fault.

    Raises:
        FaultBenchError: even that run was not exact.
    """
    with stage.train(strategy, checkpoint_every=CHECKPOINT_EVERY) as follower:
        began = follower.events[-1].time
        follower.until(protocol.Step, 2 * seconds, having=lambda one: one.time >= began + seconds)
        verdict = stage.finish(follower, strategy)
        marks = [mark for mark in figures.progress(follower.events) if began <= mark.time <= began + seconds]
    if not verdict.is_good:
        raise FaultBenchError(f"the undisturbed run: {verdict.words}")
    return sum(mark.samples for mark in marks[1:]) / (marks[-1].time - marks[0].time)


def carry_out(
    stage: Stage,
    strategy: str,
    rate: float | None,
    *,
    seed: int,
    faults: int,
    seconds: float,
    kinds: Sequence[str] = tuple(KINDS),
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Train for ``seconds`` with so many random faults; ``rate``: samples/s without any, None: not to be compared.

    Raises:
        FaultBenchError: the run ended, or somebody did not come back.
    """
    with stage.train(strategy, checkpoint_every=CHECKPOINT_EVERY) as follower:
        hosts = (follower.head, *(host.name for host in stage.others(follower)))
        plan = planned(seed, faults, seconds, hosts, kinds)
        shares = _shares(follower)
        with _Execution(stage, follower, say) as execution:
            begin = execution.carry_out(plan, seconds)
            end = begin + seconds
            absences, struck, torn = execution.finish()
        verdict = stage.finish(follower, strategy)
        marks = figures.progress(follower.events)
        away = figures.away_spans(follower.events, follower.events[-1].time)
    kept: dict[str, float] = {}
    lost: dict[str, float] = {}
    if rate is not None:
        for meaning, gone in (("reachable", absences), ("taking part", (*absences, *away))):
            kept[meaning] = _kept(marks, begin, end, rate, shares, gone)
        lost = _lost_by_kind(marks, end, rate, shares, (*absences, *away), struck)
    return Outcome(
        strategy=strategy,
        plan=plan,
        seconds=seconds,
        samples=figures.samples_between(marks, begin, end),
        kept=kept,
        lost_s=lost,
        stall=figures.stall(marks, begin, end),
        verdict=verdict,
        torn=torn,
    )


def lines(outcome: Outcome) -> list[str]:
    """For people."""
    kinds = Counter(one.kind for one in outcome.plan)
    what = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    found = [
        f"{outcome.strategy}: {len(outcome.plan)} faults in {outcome.seconds / 60:.1f} minutes ({what})",
        f"  {outcome.samples} samples; longest stall {outcome.stall:.1f} s; {outcome.verdict.words}",
    ]
    found += [
        f"  throughput kept among what is {meaning}: {100 * part:.1f} %" for meaning, part in outcome.kept.items()
    ]
    found += [f"  {kind}: {seconds / kinds[kind]:.1f} s lost each" for kind, seconds in outcome.lost_s.items()]
    return found + [f"  TORN: {text}" for text in outcome.torn]


def _shares(follower: Follower) -> dict[str, float]:
    """Each host's part of the capacity, as the run has cut its steps so far."""
    cuts = [one.shares for one in follower.events if isinstance(one, protocol.PlanMade | protocol.Rebalanced)]
    whole = sum(share.samples for share in cuts[-1])
    return {share.host: share.samples / whole for share in cuts[-1]}


def _kept(
    marks: Sequence[Mark], begin: float, end: float, rate: float, shares: Mapping[str, float], gone: Sequence[Absence]
) -> float:
    live = figures.live_seconds(begin, end, shares, gone)
    return figures.samples_between(marks, begin, end) / (rate * live)


def _lost_by_kind(
    marks: Sequence[Mark],
    end: float,
    rate: float,
    shares: Mapping[str, float],
    gone: Sequence[Absence],
    struck: Sequence[tuple[float, str]],
) -> dict[str, float]:
    """Seconds of live capacity without samples from each fault to the next one, summed by kind."""
    lost: dict[str, float] = {}
    for (begin, kind), (until, _) in itertools.pairwise((*struck, (end, ""))):
        missing = figures.live_seconds(begin, until, shares, gone)
        missing -= figures.samples_between(marks, begin, until) / rate
        lost[kind] = lost.get(kind, 0.0) + missing
    return lost


class _Execution:
    """Does what is planned, when it is due; a context manager that plugs everything in again."""

    def __init__(self, stage: Stage, follower: Follower, say: Callable[[str], None]) -> None:
        self._stage, self._follower, self._say = stage, follower, say
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._booting = ThreadPoolExecutor(1, thread_name_prefix="boot")
        self._coming: list[Future[None]] = []
        self._absences: list[Absence] = []
        self._struck: list[tuple[float, str]] = []
        self._torn: list[str] = []
        self._begin = 0.0

    def __enter__(self) -> _Execution:
        return self

    def __exit__(self, *_: object) -> None:
        self._booting.shutdown(wait=True)
        for host in self._stage.lab.hosts:
            if host.is_on:
                host.mend()
            self._stage.set_speed(host, 1.0)

    def carry_out(self, plan: Sequence[Planned], seconds: float) -> float:
        """All of it; returns when it began, in seconds since the epoch, once ``seconds`` are over.

        Raises:
            FaultBenchError: the run failed.
        """
        self._begin = time.time()
        for one in plan:
            self._at(self._begin + one.at, lambda one=one: self._strike(one))
        self._at(self._begin + seconds, lambda: None)
        while self._due:
            at, _, action = heapq.heappop(self._due)
            time.sleep(max(0.0, at - time.time()))  # the schedule's own clock
            self._follower.check()
            action()
        return self._begin

    def finish(self) -> tuple[tuple[Absence, ...], tuple[tuple[float, str], ...], tuple[str, ...]]:
        """Wait until everybody is back: absences of hosts, (time, kind) of each fault, and what went wrong.

        Raises:
            FaultBenchError: somebody is not back in time.
        """
        for coming in self._coming:
            coming.result(WELL_S)
        deadline = time.monotonic() + WELL_S
        every = {host.name for host in self._stage.lab.hosts}
        while True:
            seen = len(self._follower.events)
            step = self._follower.until(protocol.Step, WELL_S, after=seen)
            missing = every - {worker.host for worker in step.workers}
            if not missing:
                break
            if time.monotonic() > deadline:
                self._torn.append(f"{', '.join(sorted(missing))} not back within {WELL_S:.0f} s")
                break
        return tuple(self._absences), tuple(self._struck), tuple(self._torn)

    def _at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), action))

    def _strike(self, fault: Planned, waited: float = 0.0) -> None:
        host = self._stage.lab.host(fault.host)
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
                self._torn.append(f"{fault.kind} of {fault.host} could not be done: {error}")
            else:
                self._at(time.time() + AGAIN_S, lambda: self._strike(fault, waited + AGAIN_S))
            return
        self._struck.append((time.time(), fault.kind))
        long = f" for {fault.lasts:.0f} s" if fault.lasts else ""
        self._say(f"  {time.time() - self._begin:6.1f} s: {fault.kind} {fault.host}{long}, step {self._follower.step}")

    def _kill_worker(self, host: Host, fault: Planned) -> None:
        self._stage.kill_worker(host)

    def _kill_coordinator(self, host: Host, fault: Planned) -> None:
        self._stage.kill_coordinator(self._stage.lab.host(self._follower.head))

    def _cut(self, host: Host, fault: Planned) -> None:
        begin = time.time()
        host.cut()

        def mend() -> None:
            host.mend()
            self._absences.append(Absence(host.name, begin, time.time()))

        self._at(begin + fault.lasts, mend)

    def _slow(self, host: Host, fault: Planned) -> None:
        begin = self._stage.set_speed(host, SLOW_FACTOR)

        def cool() -> None:
            self._absences.append(Absence(host.name, begin, self._stage.set_speed(host, 1.0), 1 - SLOW_FACTOR))

        self._at(begin + fault.lasts, cool)

    def _power(self, host: Host, fault: Planned) -> None:
        begin = time.time()
        host.pull_plug()

        def switch_on() -> None:
            host.boot()  # by this thread: the kernel ends a host of the lab with the thread that started it
            self._coming.append(self._booting.submit(answers))

        def answers() -> None:
            self._stage.lab.await_hosts(host)
            self._absences.append(Absence(host.name, begin, time.time()))

        self._at(begin + fault.lasts, switch_on)
