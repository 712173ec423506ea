"""The rows of the table: what is done to the fleet in each, what is measured, and what it may cost.

A row is struck several times in one run, far enough apart that the run has recovered; where a fault can't be struck
twice in a run (the head is another host afterwards), each time has a run of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.faulty import figures
from benchmarks.faulty.following import FaultBenchError, Follower
from benchmarks.faulty.stage import STARTED_S, Stage, Verdict
from remote_agent import protocol
from tests.lab.machines import Host

RECOVERED_S = 180.0
"""Until what is expected after a fault must have happened; far beyond every budget."""

SETTLE_STEPS = 60
"""Steps from one fault to the next, so that a worker's earlier failures are forgotten (``policy.STEADY_STEPS``)."""

AFTER_STEPS = 5
"""Steps after a recovery that still count as around the fault."""

CUT_S = 20.0
"""How long a cable is out: long enough that Ray gives the host up, and has to be joined anew."""

SLOW_FACTOR = 0.4
COPIED_STEPS = 80
"""Steps until shards have been copied, and a spare process has started."""


@dataclass(frozen=True)
class Figure:
    """What is measured; ``budget`` is the most that it may be, None where there is none."""

    name: str
    unit: str
    budget: float | None


@dataclass(frozen=True, kw_only=True)
class Blow:
    """One fault: from ``begin`` until all was well again (seconds since the epoch), and what was measured.

    ``attached`` is what follows the run from now on, where that is another command than before.
    """

    begin: float
    end: float
    values: Mapping[str, float] = field(default_factory=dict)
    attached: Follower | None = None


Strike = Callable[[Stage, Follower, int], Blow]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A fault.

    Attributes:
        key: on the command line.
        name: in the table.
        stall: budget of the longest gap between two new steps over the median one, in seconds; None: none.
        figures: what else is measured, by the keys of :attr:`Blow.values`.
        strike: does it, and waits until all is well again; its last argument is the number of the repetition.
        settings: of the runs.
        sharded: each host holds a part of the parameter server.
        alone: each repetition has a run of its own, and what was switched off is brought back after it.
    """

    key: str
    name: str
    stall: float | None
    strike: Strike
    figures: Mapping[str, Figure] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    sharded: bool = False
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row with one strategy: each figure's values, how the runs ended, and why there is no more of it."""

    row: Row
    strategy: str
    values: Mapping[Figure, tuple[float, ...]]
    noise: float
    verdicts: tuple[Verdict, ...]
    failure: str = ""

    @property
    def is_good(self) -> bool:
        """Every value is within its budget, and every run ended as it has to."""
        within = all(
            value <= figure.budget
            for figure, values in self.values.items()
            if figure.budget is not None
            for value in values
        )
        return within and not self.failure and all(verdict.is_good for verdict in self.verdicts)


def carry_out(stage: Stage, row: Row, strategy: str, repetitions: int) -> Result:
    """Strike so often, and measure; what goes wrong is the result's ``failure``."""
    stall = Figure("stall", "s", row.stall)
    values: dict[Figure, list[float]] = {stall: [], **{figure: [] for figure in row.figures.values()}}
    verdicts: list[Verdict] = []
    noise, failure = 0.0, ""
    runs = [[number] for number in range(repetitions)] if row.alone else [list(range(repetitions))]
    for numbers in runs:
        try:
            blows, marks, verdict = _one_run(stage, row, strategy, numbers)
        except (FaultBenchError, RuntimeError, AssertionError, OSError, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
            break
        verdicts.append(verdict)
        for blow in blows:
            values[stall].append(figures.stall(marks, blow.begin, blow.end))
            for key, value in blow.values.items():
                values[row.figures[key]].append(value)
        noise = max(noise, figures.noise(marks, ((blow.begin, blow.end) for blow in blows)))
    return Result(
        row=row,
        strategy=strategy,
        values={figure: tuple(found) for figure, found in values.items()},
        noise=noise,
        verdicts=tuple(verdicts),
        failure=failure,
    )


def _one_run(
    stage: Stage, row: Row, strategy: str, numbers: list[int]
) -> tuple[list[Blow], tuple[figures.Mark, ...], Verdict]:
    """A run with these repetitions in it."""
    shards = {"shards": len(stage.lab.hosts)} if row.sharded else {}
    follower = stage.train(strategy, **row.settings, **shards)
    blows: list[Blow] = []
    try:
        for number in numbers:
            follower.until_step(follower.step + SETTLE_STEPS, RECOVERED_S, after=len(follower.events))
            blows.append(row.strike(stage, follower, number))
            follower = blows[-1].attached or follower
        follower.until_step(follower.step + SETTLE_STEPS, RECOVERED_S, after=len(follower.events))
        verdict = stage.finish(follower, strategy)
        return blows, figures.progress(follower.events), verdict
    finally:
        follower.kill()
        stage.bring_back()


# --- The faults ------------------------------------------------------------------------------------------------------


def _victim(stage: Stage, follower: Follower, number: int) -> Host:
    """A host that is not the head, each in its turn."""
    others = stage.others(follower)
    return others[number % len(others)]


def _lost(follower: Follower, host: Host, after: int) -> None:
    follower.until(protocol.WorkerLost, RECOVERED_S, after=after, having=lambda one: one.host == host.name)


def _back(follower: Follower, host: Host, after: int) -> float:
    """When the worker there took part again."""
    joined = follower.until(protocol.WorkerJoined, RECOVERED_S, after=after, having=lambda one: one.host == host.name)
    return joined.time


def _well(follower: Follower) -> float:
    """Some steps later."""
    step = max(mark.step for mark in figures.progress(follower.events))
    return follower.until_step(step + AFTER_STEPS, RECOVERED_S).time


def worker_killed(stage: Stage, follower: Follower, number: int) -> Blow:
    """Each host's in its turn, the head's too."""
    host = stage.lab.hosts[number % len(stage.lab.hosts)]
    seen = len(follower.events)
    begin = stage.kill_worker(host)
    _lost(follower, host, seen)
    back = _back(follower, host, seen)
    return Blow(begin=begin, end=_well(follower), values={"back": back - begin})


def cable_cut(stage: Stage, follower: Follower, number: int) -> Blow:
    """For :data:`CUT_S`."""
    host = _victim(stage, follower, number)
    seen, begin = len(follower.events), time.time()
    host.cut()
    try:
        _lost(follower, host, seen)
        time.sleep(max(0.0, begin + CUT_S - time.time()))  # the fault's own length
    finally:
        seen = len(follower.events)
        mended = time.time()
        host.mend()
    back = _back(follower, host, seen)
    return Blow(begin=begin, end=_well(follower), values={"back": back - mended})


def power_lost(stage: Stage, follower: Follower, number: int) -> Blow:
    """The host is switched on again, and taken in by the attached laptop: nothing of ours starts when it boots."""
    host = _victim(stage, follower, number)
    seen, begin = len(follower.events), time.time()
    host.pull_plug()
    _lost(follower, host, seen)
    seen = len(follower.events)
    host.boot()
    stage.lab.await_hosts(host)
    reachable = time.time()
    back = _back(follower, host, seen)
    return Blow(begin=begin, end=_well(follower), values={"back": back - reachable})


def device_slow(stage: Stage, follower: Follower, number: int) -> Blow:
    """The device takes 2.5 times as long, until shares have followed."""
    host = stage.lab.hosts[number % len(stage.lab.hosts)]
    seen = len(follower.events)
    begin = stage.set_speed(host, SLOW_FACTOR)
    first = follower.step + 1
    try:
        slow = follower.until(
            protocol.WorkerSlow, RECOVERED_S, after=seen, having=lambda one: one.host == host.name and one.factor < 1
        )
        shares = follower.until(protocol.Rebalanced, RECOVERED_S, after=seen)
        follower.until_step(follower.step + SETTLE_STEPS, RECOVERED_S, after=len(follower.events))
    finally:
        seen = len(follower.events)
        stage.set_speed(host, 1.0)
    follower.until(protocol.Rebalanced, RECOVERED_S, after=seen)
    steps = {"named": float(slow.step - first + 1), "shares": float(shares.step - first + 1)}
    return Blow(begin=begin, end=_well(follower), values=steps)


def shard_lost(stage: Stage, follower: Follower, number: int) -> Blow:
    """Power lost on a host with a shard and a worker."""
    follower.until_step(COPIED_STEPS + SETTLE_STEPS, RECOVERED_S)
    host = _victim(stage, follower, number)
    seen, begin = len(follower.events), time.time()
    host.pull_plug()
    follower.until(protocol.ServerLost, RECOVERED_S, after=seen)
    follower.until(protocol.RunResumed, RECOVERED_S, after=seen)
    return Blow(begin=begin, end=_well(follower))


def head_lost(stage: Stage, follower: Follower, number: int) -> Blow:
    """Power lost on the head, with a laptop attached."""
    follower.until(protocol.CheckpointSaved, RECOVERED_S, having=lambda one: len(one.hosts) > 1)
    seen, begin = len(follower.events), time.time()
    stage.lab.host(follower.head).pull_plug()
    follower.until(protocol.RunResumed, RECOVERED_S, after=seen)
    return Blow(begin=begin, end=_well(follower))


def coordinator_killed(stage: Stage, follower: Follower, number: int) -> Blow:
    """The run's own process, with a laptop attached."""
    follower.until(protocol.CheckpointSaved, RECOVERED_S)
    seen = len(follower.events)
    begin = stage.kill_coordinator(stage.lab.host(follower.head))
    follower.until(protocol.RunResumed, RECOVERED_S, after=seen)
    return Blow(begin=begin, end=_well(follower))


def laptop_killed(stage: Stage, follower: Follower, number: int) -> Blow:
    """The command on the laptop; another one attaches, and has to see all that happened, as it was written."""
    before, run = list(follower.lines), follower.run
    file = stage.run_folder(follower) / "events.jsonl"
    begin = time.time()
    follower.kill()
    wanted = len(before) + SETTLE_STEPS
    _until(lambda: len(file.read_text().splitlines()) >= wanted, "the run went on without a laptop")
    again = time.time()
    other = Follower(stage.product, "attach", run)
    try:
        written = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        last = protocol.decode_event(written[-1])
        assert last is not None
        other.until(protocol.Event, STARTED_S, having=lambda one: one.seq >= last.seq)
        whole = time.time() - again
        if other.lines[: len(before)] != before or other.lines[: len(written)] != [line[:-1] for line in written]:
            raise FaultBenchError("the history that `attach` shows is not what was written")
        return Blow(begin=begin, end=_well(other), values={"whole": whole}, attached=other)
    except BaseException:
        other.kill()
        raise


def two_at_once(stage: Stage, follower: Follower, number: int) -> Blow:
    """A worker is killed, and another host's cable is pulled."""
    cut = _victim(stage, follower, number)
    killed = next(host for host in stage.lab.hosts if host is not cut)
    seen, begin = len(follower.events), time.time()
    cut.cut()
    try:
        stage.kill_worker(killed)
        _lost(follower, killed, seen)
        _lost(follower, cut, seen)
        back = _back(follower, killed, seen)
    finally:
        after, mended = len(follower.events), time.time()
        cut.mend()
    all_back = max(back, _back(follower, cut, after))
    return Blow(begin=begin, end=_well(follower), values={"back": all_back - mended})


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + RECOVERED_S
    while not holds():
        if time.monotonic() > deadline:
            raise FaultBenchError(f"not within {RECOVERED_S:.0f} s: {what}")
        time.sleep(0.1)


WORKER_BACK = Figure("worker back", "s", None)
HOST_BACK = Figure("worker back after the cable is in again", "s", 15.0)

ROWS: Mapping[str, Row] = {
    row.key: row
    for row in (
        Row(
            key="worker",
            name="worker process killed",
            stall=1.0,
            strike=worker_killed,
            figures={"back": WORKER_BACK},
        ),
        Row(key="cut", name="cable cut for 20 s", stall=3.0, strike=cable_cut, figures={"back": HOST_BACK}),
        Row(
            key="power",
            name="host killed (power)",
            stall=3.0,
            strike=power_lost,
            figures={"back": Figure("worker back after it answers", "s", 15.0)},
        ),
        Row(
            key="slow",
            name="device slows down to 0.4",
            stall=None,
            strike=device_slow,
            figures={
                "named": Figure("until worker_slow", "steps", 10),
                "shares": Figure("until shares follow", "steps", 10),
            },
        ),
        Row(
            key="two",
            name="worker killed and cable cut",
            stall=3.0,
            strike=two_at_once,
            figures={"back": Figure("both back after the cable is in again", "s", None)},
        ),
        Row(
            key="laptop",
            name="laptop's command killed",
            stall=1.0,
            strike=laptop_killed,
            figures={"whole": Figure("until attach shows all of it", "s", None)},
        ),
        Row(
            key="coordinator",
            name="coordinator killed",
            stall=60.0,
            strike=coordinator_killed,
            settings={"checkpoint_every": 40},
        ),
        Row(key="shard", name="shard's host lost", stall=15.0, strike=shard_lost, sharded=True, alone=True),
        Row(
            key="head",
            name="head host lost",
            stall=60.0,
            strike=head_lost,
            settings={"checkpoint_every": 40},
            alone=True,
        ),
    )
}
"""By key, in the table's order."""
