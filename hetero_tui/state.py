"""Everything that a screen or a command shows, as one frozen value; :mod:`hetero_tui.fold` makes it from events.

Ages ("2 min ago") are not in it: they are computed when drawing, from the times that are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hetero_tui.events import ClusterState, HostState, Level, RunState

if TYPE_CHECKING:  # what arrives from hosts is not needed for the first paint: neither pydantic nor the protocol
    from hetero_tui.facts import HostFacts
    from remote_agent import protocol

RECENT_STEPS = 50
"""Steps whose parts (compute, push, pull, wait) are kept: what the "last 50" bars average over."""

LOSS_POINTS = 2000
"""Points of the loss curve that are kept; then every second one goes, so that memory stays bounded."""

LOG_LINES = 500
"""Lines of the event log that are kept."""


@dataclass(frozen=True, kw_only=True)
class HostView:
    """What is known of one host."""

    name: str
    address: str
    state: HostState = HostState.UNKNOWN
    detail: str = ""
    since: float | None = None
    last_seen: float | None = None
    facts: HostFacts | None = None
    sample: protocol.HostSample | None = None
    sampled: float | None = None
    round_trip_s: float | None = None
    offered_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """One worker of the run and its share of each step now; ``fraction`` is that share of the batch, 0..1."""

    worker: str
    host: str
    device: str
    samples: int
    fraction: float
    simulated_speed: float | None = None
    alive: bool = True
    slow_factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class Marker:
    """Something to point at on the loss curve."""

    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What is known of the run on the screen."""

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
    losses: tuple[tuple[int, float], ...] = ()
    workers: tuple[WorkerView, ...] = ()
    recent: tuple[protocol.Step, ...] = ()
    markers: tuple[Marker, ...] = ()
    checkpoint: str = ""
    checkpoint_step: int = 0
    evaluation: dict[str, float] = field(default_factory=dict)
    evaluated: protocol.Evaluated | None = None
    best: protocol.Evaluated | None = None

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a recent step, from step event to step event where there are two."""
        if len(self.recent) > 1:
            return (self.recent[-1].time - self.recent[0].time) / (len(self.recent) - 1)
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
    log: tuple[LogLine, ...] = ()

    def host(self, name: str) -> HostView | None:
        """The host of that name, or None."""
        return next((host for host in self.hosts if host.name == name), None)

    @property
    def hosts_up(self) -> int:
        """How many hosts have Ray running, by their own last word."""
        return sum(host.state in (HostState.UP, HostState.TRAINING, HostState.SLOW) for host in self.hosts)


def initial(cluster: str, hosts: tuple[tuple[str, str], ...]) -> State:
    """The state before anything is known; ``hosts`` are pairs of name and address."""
    return State(cluster=cluster, hosts=tuple(HostView(name=name, address=address) for name, address in hosts))
