"""Defines the events of the laptop itself; those of a run are wrapped as :class:`RunProgressed`.

:mod:`hetero_tui.fold` turns them into the :class:`~hetero_tui.state.State` that screens and commands render.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from remote_agent.states import RunState

if TYPE_CHECKING:  # what arrives from hosts is not needed for the first paint: neither pydantic nor the protocol
    from hetero_tui.facts import HostFacts
    from remote_agent import protocol


class HostState(StrEnum):
    """The state of a host."""

    UNKNOWN = "unknown"
    CONNECTING = "connecting"
    IDLE = "idle"  # it answers, and nothing of ours runs there; whether it is fit is not known
    READY = "ready"  # probed, fit, not in a cluster
    UNFIT = "unfit"  # reachable, but something that is needed is missing
    INSTALLING = "installing"  # bootstrap makes its environment
    STARTING = "starting"
    RESTARTING = "restarting"  # Ray ended there, and the host itself is bringing it back
    UP = "up"  # Ray runs and has joined
    TRAINING = "training"
    SLOW = "slow"
    BENCHED = "benched"  # its devices are too slow just now to make a step shorter
    PAUSED = "paused"  # its worker was lost, and is started again after a pause
    DRAINED = "drained"  # it left the run because a user asked for it
    RETURNING = "returning"  # its worker is being started
    STOPPING = "stopping"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"  # login or host key
    FAILED = "failed"

    @property
    def words(self) -> str:
        """As screens show it."""
        return "coming back" if self is HostState.RETURNING else self.value


class ClusterState(StrEnum):
    """The state of the whole cluster; ``degraded``: some of its hosts are not up."""

    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    DEGRADED = "degraded"
    STOPPING = "stopping"


class Level(StrEnum):
    """The level of a log line: ``bad`` needs the user, ``good`` means repaired or done."""

    INFO = "info"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


# --- Events of the laptop --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Happened:
    """An event of a moment; ``time``, in seconds since the epoch, is now if none is given."""

    time: float = field(default_factory=lambda: time.time())


@dataclass(frozen=True, kw_only=True)
class HostChanged(Happened):
    """A host changed its state; with a few words of detail ("joined in 3.1 s") and a hint for the user."""

    host: str
    state: HostState
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class HostProbed(Happened):
    """Facts about a host arrived."""

    host: str
    facts: HostFacts


@dataclass(frozen=True, kw_only=True)
class HostSampled(Happened):
    """Live use of a host arrived; ``time`` is the laptop's clock, so that ages do not depend on the host's."""

    host: str
    sample: protocol.HostSample
    round_trip_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class HostLost(Happened):
    """The connection to a host broke; its last state is kept, with growing age.

    ``retry_s``: seconds until the next attempt to connect; None: there is no automatic one.
    """

    host: str
    cause: str
    hint: str = ""
    retry_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class HostKeyOffered(Happened):
    """An unknown server offered this key (SHA256, as OpenSSH prints it); the user has to accept or refuse it.

    ``endpoint``: the server's address, which may be of a jump host; empty: the host's own.
    """

    host: str
    fingerprint: str
    endpoint: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterChanged(Happened):
    """The cluster's state or head changed. ``detail`` restricts the new state, in words for the log.

    ``epoch``: of the cluster that was found, so that nothing that is left of one that was taken down counts; 0: any.
    """

    state: ClusterState
    head: str | None = None
    detail: str = ""
    epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class RunChanged(Happened):
    """The laptop's own knowledge of a run changed: launched, asked to stop, coordinator gone.

    ``history``: of one that is resumed the number of its last event before; 0: it is not, or that is not known.
    """

    run: str
    job: str
    state: RunState
    detail: str = ""
    history: int = 0


@dataclass(frozen=True, kw_only=True)
class RunProgressed:
    """One event of a run's ``events.jsonl`` arrived."""

    run: str
    event: protocol.Event


@dataclass(frozen=True, kw_only=True)
class RunBehind:
    """The app attached to a run whose history, up to event number ``seq`` of ``step``, has to be read first."""

    run: str
    seq: int
    step: int


@dataclass(frozen=True, kw_only=True)
class RunRewound:
    """The shown events of a run after number ``seq`` are no longer valid; others follow.

    A lost head wrote them, and the laptop that resumed the run had not seen them.
    """

    run: str
    seq: int


@dataclass(frozen=True, kw_only=True)
class Notice(Happened):
    """A line for the log was written; nothing else changed."""

    level: Level
    text: str
    host: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunsListed(Happened):
    """The hosts listed their runs, oldest first."""

    runs: tuple[protocol.RunSummary, ...]


Event = (
    HostChanged
    | HostProbed
    | HostSampled
    | HostLost
    | HostKeyOffered
    | ClusterChanged
    | RunChanged
    | RunProgressed
    | RunBehind
    | RunRewound
    | RunsListed
    | Notice
)
Emit = Callable[[Event], None]
"""A function to which an operation reports events; it never blocks and is called on the event loop."""
