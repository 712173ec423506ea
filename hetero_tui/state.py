"""Everything that a screen or a command shows, as one frozen value; :mod:`hetero_tui.fold` makes it from events.

Ages ("2 min ago") are not in it: they are computed when drawing, from the times that are.
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
"""Steps whose parts (compute, push, pull, wait) are kept: what the "last 50" bars average over."""

LOSS_POINTS = 2000
"""Points of the loss curve that are kept; then every second one goes, so that memory stays bounded."""

COORDINATOR, WORKERS, MEASURING, FIRST_STEP = "coordinator", "workers", "devices and links", "first step"
"""Parts of a run's start, in their order."""

CURVE_POINTS = 32
"""Losses of a run's curve of one line."""

FAULTS = 200
"""Faults of a run that are kept; the numbers go on."""

LOG_LINES = 500
"""Lines of the event log that are kept."""


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
"""Where Ray runs on a host and has joined."""


@dataclass(frozen=True, kw_only=True)
class HostView:
    """What is known of one host."""

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
    next_try: float | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """One worker of the run and its share of each step now; ``fraction`` is that share of the batch, 0..1.

    Of a model that is cut by its layers it is the worker's part of the blocks.
    """

    worker: str
    host: str
    device: str
    samples: int
    fraction: float
    simulated_speed: float | None = None
    alive: bool = True
    slow_factor: float | None = None
    drained: bool = False
    retry_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that went wrong in a run, and what came of it: a row of the faults' view.

    Attributes:
        number: from 1, of all faults of the run; the curves mark it.
        time: when it was noticed, in seconds since the epoch.
        step: in which it was.
        host: where.
        worker: whose; empty: of a whole host.
        word: lost, late, slow, shard lost or head lost.
        what: in a few words.
        done: what was done about it.
        stall_s: seconds for which the run stood still; None: none, or not known.
        retry_s: seconds after ``time`` at which a lost worker is started again; None: at once, or it was not said.
        back: when it was mended; None: it is not yet.
        tries: how often it was tried to mend it.
    """

    number: int
    time: float
    step: int
    host: str
    worker: str
    word: str
    what: str
    done: str = ""
    stall_s: float | None = None
    retry_s: float | None = None
    back: float | None = None
    tries: int = 0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run's start; ``ended`` is None while it goes on."""

    name: str
    began: float
    ended: float | None = None


@dataclass(frozen=True, kw_only=True)
class Behind:
    """The newest event of a run, of which only older ones are known yet: its number, and the step that it is at."""

    seq: int
    step: int


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What is known of the run on the screen.

    While it is ``behind``, what is known is the past: screens show :attr:`State.present` instead.
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
    step: int = 0
    loss: float | None = None
    samples: int = 0
    last_seq: int = 0
    behind: Behind | None = None
    history: int = 0  # the number of its last event before it was resumed; 0: it was not, since it is followed
    losses: tuple[tuple[int, float], ...] = ()
    workers: tuple[WorkerView, ...] = ()
    recent: tuple[protocol.Step, ...] = ()
    superseded: protocol.Step | None = None  # the furthest one before a lost worker sent it back, until it is past it
    faults: tuple[Fault, ...] = ()
    phases: tuple[Phase, ...] = ()
    plan: protocol.PlanMade | None = None
    replanned: protocol.Replanned | None = None
    last_event: float | None = None
    away_seconds: float = 0.0
    checkpoint: str = ""
    checkpoint_step: int = 0
    evaluation: dict[str, float] = field(default_factory=dict)
    evaluated: protocol.Evaluated | None = None
    best: protocol.Evaluated | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds from its start to its end, or to its last event, without the time for which it was stopped."""
        last = self.ended if self.ended is not None else self.last_event
        if self.started is None or last is None:
            return None
        return max(0.0, last - self.started - self.away_seconds)

    @property
    def stages(self) -> tuple[protocol.Stage, ...]:
        """The parts of a model that is cut by its layers, in their order; none of any other."""
        return self.plan.stages if self.plan is not None else ()

    @property
    def is_starting(self) -> bool:
        """Whether its workers are being started, for the first time or again: it makes no steps yet."""
        return bool(self.phases) and self.phases[-1].ended is None and not self.state.final

    @property
    def paused_hosts(self) -> tuple[str, ...]:
        """The hosts whose workers are lost just now, and are waited for."""
        lost = (worker.host for worker in self.workers if not worker.alive and not worker.drained)
        return tuple(dict.fromkeys(lost))

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a recent step, from step event to step event where there are two."""
        if len(self.recent) > 1:
            first, last = self.recent[0], self.recent[-1]
            return (last.time - first.time) / max(1, last.step - first.step)
        return self.recent[0].seconds if self.recent else None

    @property
    def samples_per_second(self) -> float | None:
        """Throughput over the recent steps."""
        seconds = self.step_seconds
        if not seconds or not self.recent:
            return None
        return sum(step.samples for step in self.recent) / len(self.recent) / seconds

    @property
    def remaining_seconds(self) -> float | None:
        """Estimated seconds until the last step."""
        seconds = self.step_seconds
        return None if seconds is None or self.state.final else max(0, self.iterations - self.step) * seconds

    @property
    def stalled_seconds(self) -> float:
        """Seconds for which faults made it stand still, of those faults that are kept."""
        return sum(fault.stall_s or 0.0 for fault in self.faults)


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of the event log.

    Attributes:
        time: in seconds since the epoch.
        level: how bad it is.
        text: one line.
        number: from 1, of all that were ever logged.
        is_routine: it comes again and again, and the newest of such lines in a row is enough.
    """

    time: float
    level: Level
    text: str
    number: int = 0
    is_routine: bool = False


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that a screen or a command shows."""

    cluster: str
    cluster_state: ClusterState = ClusterState.DOWN
    head: str | None = None
    hosts: tuple[HostView, ...] = ()
    run: RunView | None = None
    runs: tuple[protocol.RunSummary, ...] | None = None  # None: not asked for yet
    cluster_phase: Phase | None = None
    told: tuple[str, int] = ("", 0)  # of which run, and up to which of its events, the log has lines
    log: tuple[LogLine, ...] = ()

    @property
    def present(self) -> State:
        """The same without what is known of a run's past only, until that has caught up with its present."""
        run = self.run
        if run is None or run.behind is None:
            return self
        now = RunView(run=run.run, job=run.job, state=run.state, step=run.step, iterations=run.iterations)
        return replace(self, run=replace(now, behind=run.behind))

    @property
    def listed_runs(self) -> tuple[protocol.RunSummary, ...] | None:
        """The runs as the hosts listed them, the one on the screen as it stands now; None: not asked for yet."""
        shown, runs = self.run, self.runs
        if shown is None or runs is None or not shown.step or shown.behind is not None:
            return runs
        losses = shown.losses[:: max(1, len(shown.losses) // CURVE_POINTS)]
        now: dict[str, Any] = {
            "state": shown.state,
            "step": shown.step,
            "loss": shown.loss,
            "started": shown.started,
            "ended": shown.ended,
            "curve": tuple(loss for _, loss in losses),
            "iterations": shown.iterations,
            "parameters": shown.parameters,
        }
        return tuple(replace(run, **now) if run.id == shown.run else run for run in runs)

    def host(self, name: str) -> HostView | None:
        """The host of that name, or None."""
        return next((host for host in self.hosts if host.name == name), None)

    @property
    def is_silent(self) -> bool:
        """Whether no host could be asked, so that nothing is known of the cluster."""
        away = (HostState.UNREACHABLE, HostState.REFUSED)
        return bool(self.hosts) and all(host.state in away for host in self.hosts)

    @property
    def hosts_up(self) -> int:
        """How many hosts have Ray running, by their own last word."""
        return sum(host.state in IN_CLUSTER for host in self.hosts)

    @property
    def hosts_training(self) -> int:
        """How many hosts train."""
        return sum(host.state in (HostState.TRAINING, HostState.SLOW) for host in self.hosts)

    @property
    def hosts_able(self) -> int:
        """How many hosts train or could: reached at least once and fit, and not taken out by a user."""
        never = (HostState.UNKNOWN, HostState.CONNECTING, HostState.UNFIT, HostState.REFUSED, HostState.DRAINED)
        able = [host for host in self.hosts if host.state not in never]
        return sum(host.last_seen is not None or host.state is not HostState.UNREACHABLE for host in able)


def initial(cluster: str, hosts: tuple[tuple[str, str], ...]) -> State:
    """The state before anything is known; ``hosts`` are pairs of name and address."""
    return State(cluster=cluster, hosts=tuple(HostView(name=name, address=address) for name, address in hosts))
