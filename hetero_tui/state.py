"""Defines the state that screens and commands show, one frozen value; :mod:`hetero_tui.fold` makes it from events.

It has times, but no ages ("2 min ago"), which are computed when drawing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hetero_tui.events import ClusterState, HostState, Level
from remote_agent.states import RunState

if TYPE_CHECKING:  # what arrives from hosts is not needed for the first paint: neither pydantic nor the protocol
    from hetero_tui.facts import HostFacts
    from remote_agent import protocol

RECENT_STEPS = 50
"""Number of steps whose parts (compute, push, pull, wait) are kept for the "last 50" bars."""

LOSS_POINTS = 2000
"""Most points of the loss curve; beyond that, every second one is dropped."""

COORDINATOR, WORKERS, MEASURING, FIRST_STEP = "coordinator", "workers", "devices and links", "first step"
"""Parts of a run's start, in their order."""

TAKEOVER = "new coordinator"
"""The part in which a coordinator that was lost is replaced."""

CURVE_POINTS = 32
"""Number of losses in a run's one-line curve."""

FAULTS = 200
"""Number of a run's faults that are kept; their numbers continue."""

IN_CLUSTER = frozenset(
    (
        HostState.UP,
        HostState.TRAINING,
        HostState.SLOW,
        HostState.BENCHED,
        HostState.PAUSED,
        HostState.DRAINED,
        HostState.RETURNING,
    )
)
"""States of hosts on which Ray runs and has joined the cluster."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a host is fit for the cluster, as it was last found: ready, unfit and why, or idle: not known."""

    state: HostState = HostState.IDLE
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class HostView:
    """The state of one host."""

    name: str
    address: str
    state: HostState = HostState.UNKNOWN
    detail: str = ""
    hint: str = ""
    since: float | None = None
    last_seen: float | None = None
    facts: HostFacts | None = None
    sample: protocol.HostSample | None = None
    sampled: float | None = None
    round_trip_s: float | None = None
    offered_key: str | None = None
    offered_by: str = ""
    next_try: float | None = None
    verdict: Verdict = Verdict()


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """One worker of the run and its current share of a step; ``fraction`` is its part of the batch, 0..1.

    For a pipeline, ``fraction`` is the worker's part of the model's blocks.
    """

    worker: str
    host: str
    device: str
    samples: int
    fraction: float
    simulated_speed: float | None = None
    alive: bool = True
    is_coming: bool = False  # its process is being started, or it has no share yet
    slow_factor: float | None = None
    drained: bool = False
    retry_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a run and the reaction to it; a row of the Faults view.

    Attributes:
        number: from 1, over all faults of the run; the curves mark it.
        time: when it was detected, in seconds since the epoch.
        worker: the worker; empty: the whole host.
        word: one of those in :mod:`hetero_tui.faults`.
        moved: what of it are samples that other hosts computed, as (host, samples).
        stall_s: seconds for which the run stalled; None: it did not, or the time is unknown.
        stall_with: the number of the fault in whose stall this one took part: both were between the same two steps.
        retry_s: seconds after ``time`` at which a lost worker is restarted; None: at once, or unknown.
        back: when the fault was over; None: it is not yet.
        over: how it ended, where not by being back; empty: it is back, or not over.
        tries: number of recovery attempts.
    """

    number: int
    time: float
    step: int
    host: str
    worker: str
    word: str
    what: str
    done: str = ""
    moved: tuple[tuple[str, int], ...] = ()
    stall_s: float | None = None
    stall_with: int | None = None
    retry_s: float | None = None
    back: float | None = None
    over: str = ""
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a run's start; ``ended`` is None while it lasts."""

    name: str
    began: float
    ended: float | None = None


@dataclass(frozen=True, kw_only=True)
class Behind:
    """The number and the step of a run's newest event, while only older events have been read."""

    seq: int
    step: int


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The state of the run on the screen; its times are by its head's clock (:meth:`State.here`).

    While ``behind`` is set, this state is of the past; screens show :attr:`State.present` instead.
    """

    run: str
    job: str
    state: RunState = RunState.STARTING
    detail: str = ""
    started: float | None = None
    ended: float | None = None
    iterations: int = 0
    batch_size: int = 0
    parameters: int = 0
    script: bool = False  # or a sweep: it makes no steps of its own
    step: int = 0
    loss: float | None = None
    samples: int = 0
    last_seq: int = 0
    behind: Behind | None = None
    history: int = 0  # the number of its last event before it was resumed; 0: it was not, since it is followed
    losses: tuple[tuple[int, float], ...] = ()
    workers: tuple[WorkerView, ...] = ()
    shares_seq: int = 0  # the number of the event that gave the workers their shares of now
    recent: tuple[protocol.Step, ...] = ()
    superseded: protocol.Step | None = None  # the furthest one before a fault, until the run is past it again
    stood_after: protocol.Step | None = None  # the last new one before it was lost and resumed, until there is another
    faults: tuple[Fault, ...] = ()
    stalled_before: float = 0.0  # seconds for which faults stalled it that are not kept any more
    phases: tuple[Phase, ...] = ()
    plan: protocol.PlanMade | None = None
    step_seconds: float | None = None  # of a step, as measured now; see remote_agent.planning.step_times
    predicted_s: float | None = None  # of a step, as it is predicted now; ``plan`` has what was planned
    last_event: float | None = None
    away_seconds: float = 0.0
    checkpoint: str = ""
    checkpoint_step: int = 0
    evaluation: dict[str, float] = field(default_factory=dict)
    evaluated: protocol.Evaluated | None = None
    best: protocol.Evaluated | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds from the run's start to its end, or to its last event, without the time in which it was stopped."""
        last = self.ended if self.ended is not None else self.last_event
        if self.started is None or last is None:
            return None
        return max(0.0, last - self.started - self.away_seconds)

    def is_past(self, event: protocol.Event) -> bool:
        """Whether an event is from before the run was resumed; that event may have the number of a removed last one."""
        return event.seq < self.history or (event.seq == self.history and event.kind != "run_resumed")

    @property
    def stages(self) -> tuple[protocol.Stage, ...]:
        """The stages of a pipeline, in their order; empty for other strategies."""
        return self.plan.stages if self.plan is not None else ()

    @property
    def is_starting(self) -> bool:
        """Whether its workers are starting, for the first time or again, and it makes no steps yet."""
        return bool(self.phases) and self.phases[-1].ended is None and not self.state.final

    @property
    def paused_hosts(self) -> tuple[str, ...]:
        """The hosts whose workers are lost now and will be restarted."""
        lost = (worker.host for worker in self.workers if not worker.alive and not worker.drained)
        return tuple(dict.fromkeys(lost))

    @property
    def steady(self) -> tuple[protocol.Step, ...]:
        """The recent steps with the shares of now; as long as there is none, all recent ones."""
        return tuple(step for step in self.recent if step.seq > self.shares_seq) or self.recent

    @property
    def interval(self) -> float | None:
        """Mean seconds from one recent step to the next, with what comes between; as the steps say, if clocks jump."""
        if not self.recent:
            return None
        first, last = self.recent[0], self.recent[-1]
        if last.time > first.time:
            return (last.time - first.time) / max(1, last.step - first.step)
        return sum(step.seconds for step in self.recent) / len(self.recent)

    @property
    def samples_per_second(self) -> float | None:
        """Throughput over the recent steps."""
        seconds = self.interval
        if not seconds or not self.recent:
            return None
        return sum(step.samples for step in self.recent) / len(self.recent) / seconds

    @property
    def remaining_seconds(self) -> float | None:
        """Estimated seconds until the last step."""
        seconds = self.interval
        return None if seconds is None or self.state.final else max(0, self.iterations - self.step) * seconds

    @property
    def stalled_seconds(self) -> float:
        """Seconds for which faults stalled the run."""
        return self.stalled_before + sum(fault.stall_s or 0.0 for fault in self.faults)


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of the event log.

    Attributes:
        time: in seconds since the epoch.
        number: from 1, over all lines ever logged.
        topic: what it tells of, if that may come again and again; of each topic the newest line is kept, as long as
            nothing else happens.
        count: how often that happened so far.
        is_data: commands print the same on stdout, as data.
    """

    time: float
    level: Level
    text: str
    number: int = 0
    topic: str = ""
    count: int = 1
    is_data: bool = False


@dataclass(frozen=True, kw_only=True)
class State:
    """The whole state that screens and commands show.

    ``epoch`` is that of the cluster that is there, ``ended_epoch`` of the last one that was taken down; 0: not known.
    """

    cluster: str
    cluster_state: ClusterState = ClusterState.DOWN
    head: str | None = None
    epoch: int = 0
    ended_epoch: int = 0
    hosts: tuple[HostView, ...] = ()
    run: RunView | None = None
    runs: tuple[protocol.RunSummary, ...] | None = None  # None: not listed yet
    cluster_phase: Phase | None = None
    told: tuple[str, int] = ("", 0)  # of which run, and up to which of its events, the log has lines
    log: tuple[LogLine, ...] = ()

    @property
    def present(self) -> State:
        """This state without the run while only the run's past is known."""
        run = self.run
        if run is None or run.behind is None:
            return self
        now = RunView(run=run.run, job=run.job, state=run.state, step=run.step, iterations=run.iterations)
        return replace(self, run=replace(now, behind=run.behind))

    @property
    def listed_runs(self) -> tuple[protocol.RunSummary, ...] | None:
        """The runs that the hosts listed, with the current state of the one on the screen; None: not listed yet."""
        shown, runs = self.run, self.runs
        if shown is None or runs is None or shown.behind is not None:
            return runs
        now: dict[str, Any] = {"state": shown.state}
        # Of one that is being resumed the time in which it was stopped is not known yet.
        ended = shown.last_event if shown.is_starting and shown.ended is None else shown.ended
        if shown.step or shown.state.final:
            now["ended"] = ended and self.here(ended)
        if shown.step:  # until then, and as long as a resumed run is read again, the list knows more
            losses = shown.losses[:: max(1, len(shown.losses) // CURVE_POINTS)]
            now |= {
                "step": shown.step,
                "loss": shown.loss,
                "started": shown.started and self.here(shown.started),
                "away_s": shown.away_seconds,
                "curve": tuple(loss for _, loss in losses),
                "step_s": shown.step_seconds,
                "predicted_s": shown.predicted_s,
                "iterations": shown.iterations,
                "parameters": shown.parameters,
            }
            if shown.checkpoint:
                now["checkpoint"] = shown.checkpoint_step
        return tuple(replace(run, **now) if run.id == shown.run else run for run in runs)

    def host(self, name: str) -> HostView | None:
        """The host of that name, or None."""
        return next((host for host in self.hosts if host.name == name), None)

    def here(self, time: float, host: str | None = None) -> float:
        """A time by a host's clock (None: the head's) on this laptop's clock, as far as samples tell the difference."""
        return time + self._skew(host)

    def there(self, time: float) -> float:
        """A time of this laptop's clock by the head's, which all times of :class:`RunView` are by."""
        return time - self._skew(None)

    def _skew(self, name: str | None) -> float:
        """By how many seconds the laptop's clock is ahead of a host's, None: of the head's."""
        name = self.head if name is None else name
        host = self.host(name) if name is not None else None
        if host is None or host.sample is None or host.sampled is None:
            return 0.0
        return host.sampled - host.sample.time

    def is_taken_down(self, epoch: int) -> bool:
        """Whether this is the epoch of the cluster that was taken down last: what still runs of it is about to end."""
        return bool(epoch) and epoch == self.ended_epoch

    @property
    def is_silent(self) -> bool:
        """Whether no host answered, so that the cluster's state is unknown."""
        away = (HostState.UNREACHABLE, HostState.REFUSED)
        return bool(self.hosts) and all(host.state in away for host in self.hosts)

    @property
    def hosts_up(self) -> int:
        """Number of hosts on which Ray runs, as they last reported."""
        return sum(host.state in IN_CLUSTER for host in self.hosts)

    @property
    def hosts_training(self) -> int:
        """Number of hosts that train, also of those that only this laptop does not reach: the run's events say so."""
        seen = (HostState.TRAINING, HostState.SLOW)
        return sum(host.state in seen or self.trains_unseen(host) for host in self.hosts)

    def trains_unseen(self, host: HostView) -> bool:
        """Whether a host that this laptop does not reach takes part in the run."""
        workers = self.run.workers if self.run is not None and not self.run.state.final else ()
        takes_part = any(worker.host == host.name and worker.alive and worker.samples for worker in workers)
        return takes_part and host.state is HostState.UNREACHABLE

    @property
    def hosts_able(self) -> int:
        """Number of hosts that train or could: reached at least once, fit, and not drained.

        A host that is up has no part in the planned run: it is only a server.
        """
        never = {HostState.UNKNOWN, HostState.CONNECTING, HostState.UNFIT, HostState.REFUSED, HostState.DRAINED}
        if self.run is not None and self.run.plan is not None and not self.run.state.final:
            never.add(HostState.UP)
        able = [host for host in self.hosts if host.state not in never]
        return sum(host.last_seen is not None or host.state is not HostState.UNREACHABLE for host in able)


def initial(cluster: str, hosts: tuple[tuple[str, str], ...]) -> State:
    """The initial state; ``hosts`` are pairs of name and address."""
    return State(cluster=cluster, hosts=tuple(HostView(name=name, address=address) for name, address in hosts))
