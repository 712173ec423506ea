"""The faults themselves: each does it, and waits until all is well again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.faulty import figures
from benchmarks.faulty.stage import STARTED_S, Stage
from remote_agent import protocol
from tests.lab.following import Following, RunError
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


@dataclass(frozen=True, kw_only=True)
class Blow:
    """One fault: from ``begin`` until all was well again (seconds since the epoch), and what was measured.

    ``attached`` is what follows the run from now on, where that is another command than before.
    """

    begin: float
    end: float
    values: Mapping[str, float] = field(default_factory=dict)
    attached: Following | None = None


Strike = Callable[[Stage, Following, int], Blow]
"""Its last argument is the number of the repetition."""


def _victim(stage: Stage, follower: Following, number: int) -> Host:
    """A host that is not the head, each in its turn."""
    others = stage.others(follower)
    return others[number % len(others)]


def _able_to_do_less(stage: Stage, follower: Following) -> list[Host]:
    """Hosts whose shares can follow them when they become slower: in a round each makes one local step at least."""
    plan = next(event for event in follower.events if isinstance(event, protocol.PlanMade))
    cut = [event for event in follower.events if isinstance(event, protocol.PlanMade | protocol.Rebalanced)][-1]
    least = min(share.samples for share in cut.shares) if plan.strategy == "local_sgd" else 0
    able = {share.host for share in cut.shares if share.samples > least}
    return [host for host in stage.lab.hosts if host.name in able]


def _lost(follower: Following, host: Host, after: int) -> None:
    follower.until(protocol.WorkerLost, RECOVERED_S, after=after, having=lambda one: one.host == host.name)


def _back(follower: Following, host: Host, after: int) -> float:
    """When the worker there took part again."""
    joined = follower.until(protocol.WorkerJoined, RECOVERED_S, after=after, having=lambda one: one.host == host.name)
    return joined.time


def well(follower: Following) -> float:
    """Some steps later."""
    step = max(mark.step for mark in figures.progress(follower.events))
    return follower.until_step(step + AFTER_STEPS, RECOVERED_S).time


def worker_killed(stage: Stage, follower: Following, number: int) -> Blow:
    """Each host's in its turn, the head's too."""
    host = stage.lab.hosts[number % len(stage.lab.hosts)]
    seen = len(follower.events)
    begin = stage.kill_worker(host)
    _lost(follower, host, seen)
    back = _back(follower, host, seen)
    return Blow(begin=begin, end=well(follower), values={"back": back - begin})


def cable_cut(stage: Stage, follower: Following, number: int) -> Blow:
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
    return Blow(begin=begin, end=well(follower), values={"back": back - mended})


def power_lost(stage: Stage, follower: Following, number: int) -> Blow:
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
    return Blow(begin=begin, end=well(follower), values={"back": back - reachable})


def device_slow(stage: Stage, follower: Following, number: int) -> Blow:
    """The device takes 2.5 times as long, until shares have followed; a pipeline is cut anew after a checkpoint."""
    is_cut = any(isinstance(event, protocol.PlanMade) and event.stages for event in follower.events)
    answer: type[protocol.RunResumed | protocol.Rebalanced] = protocol.RunResumed if is_cut else protocol.Rebalanced
    hosts = _able_to_do_less(stage, follower)
    host = hosts[number % len(hosts)]
    seen = len(follower.events)
    begin = stage.set_speed(host, SLOW_FACTOR)
    first = follower.step + 1
    try:
        slow = follower.until(
            protocol.WorkerSlow, RECOVERED_S, after=seen, having=lambda one: one.host == host.name and one.factor < 1
        )
        shares = follower.until(answer, RECOVERED_S, after=seen)
        follower.until_step(follower.step + SETTLE_STEPS, RECOVERED_S, after=len(follower.events))
    finally:
        seen = len(follower.events)
        stage.set_speed(host, 1.0)
    if not is_cut:  # a device without layers is not seen to be fast again
        follower.until(protocol.Rebalanced, RECOVERED_S, after=seen)
    steps = {"named": float(slow.step - first + 1), "shares": float(shares.step - first + 1)}
    return Blow(begin=begin, end=well(follower), values=steps)


def shard_lost(stage: Stage, follower: Following, number: int) -> Blow:
    """Power lost on a host with a shard and a worker."""
    follower.until_step(COPIED_STEPS + SETTLE_STEPS, RECOVERED_S)
    host = _victim(stage, follower, number)
    seen, begin = len(follower.events), time.time()
    host.pull_plug()
    follower.until(protocol.ServerLost, RECOVERED_S, after=seen)
    follower.until(protocol.RunResumed, RECOVERED_S, after=seen)
    return Blow(begin=begin, end=well(follower))


def head_lost(stage: Stage, follower: Following, number: int) -> Blow:
    """Power lost on the head, with a laptop attached."""
    follower.until(protocol.CheckpointSaved, RECOVERED_S, having=lambda one: len(one.hosts) > 1)
    seen, begin = len(follower.events), time.time()
    stage.lab.host(follower.head).pull_plug()
    follower.until(protocol.RunResumed, RECOVERED_S, after=seen)
    return Blow(begin=begin, end=well(follower))


def coordinator_killed(stage: Stage, follower: Following, number: int) -> Blow:
    """SIGKILL for the process that coordinates the run; its overseer has another one."""
    return _coordinator_struck(stage, follower, signal.SIGKILL)


def coordinator_stopped(stage: Stage, follower: Following, number: int) -> Blow:
    """SIGSTOP for the process that coordinates the run; its overseer has another one."""
    return _coordinator_struck(stage, follower, signal.SIGSTOP)


def _coordinator_struck(stage: Stage, follower: Following, how: signal.Signals) -> Blow:
    follower.until(protocol.CheckpointSaved, RECOVERED_S)
    seen = len(follower.events)
    begin = stage.signal_coordinator(stage.lab.host(follower.head), how)
    follower.until(protocol.RunResumed, RECOVERED_S, after=seen)
    return Blow(begin=begin, end=well(follower))


def laptop_killed(stage: Stage, follower: Following, number: int) -> Blow:
    """The command on the laptop; another one attaches, and has to see all that happened, as it was written."""
    before, run = list(follower.lines), follower.run
    file = stage.run_folder(follower) / "events.jsonl"
    begin = time.time()
    follower.kill()
    wanted = len(before) + SETTLE_STEPS
    _until(lambda: len(file.read_text().splitlines()) >= wanted, "the run went on without a laptop")
    again = time.time()
    other = Following(stage.product, "attach", run)
    try:
        written = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        last = protocol.decode_event(written[-1])
        assert last is not None
        other.until(protocol.Event, STARTED_S, having=lambda one: one.seq >= last.seq)
        whole = time.time() - again
        if other.lines[: len(before)] != before or other.lines[: len(written)] != [line[:-1] for line in written]:
            raise RunError("the history that `attach` shows is not what was written")
        return Blow(begin=begin, end=well(other), values={"whole": whole}, attached=other)
    except BaseException:
        other.kill()
        raise


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + RECOVERED_S
    while not holds():
        if time.monotonic() > deadline:
            raise RunError(f"not within {RECOVERED_S:.0f} s: {what}")
        time.sleep(0.1)
