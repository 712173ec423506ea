"""Reads and writes the file from which a new coordinator takes over: the actors, and their state.

The file is private, in the run's folder, and is written whenever a worker comes or goes. It is a pickle: only this
host's user can have written it, and it never leaves the host.
"""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import dataclass
from pathlib import Path

from remote_agent.goals import Watched
from remote_agent.host.processes import write_private
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.protocol import DeviceSpec
from remote_agent.training.checkpoint.optimizer_state import Shapes
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan.placement import Placement
from remote_agent.training.coordinator.request import Request
from remote_agent.training.coordinator.session import Session
from remote_agent.training.coordinator.sources import Indexed
from remote_agent.training.shared.clock import ClockOffset
from remote_agent.training.wire.endpoint import Stream, StreamInfo

FILE = "takeover.pickle"
"""The file's name in a run's folder."""

NOTICED = 0.2
"""Relative change of a device's speed that is written to the file."""


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """A worker that takes part; ``actor`` is its name for ``rpc.find``, ``clock`` its offset against this host's."""

    actor: str
    seat: Placement
    profile: DeviceProfile
    simulated_speed: float | None
    clock: ClockOffset


@dataclass(frozen=True, kw_only=True)
class TakeoverState:
    """The contents of the file.

    Attributes:
        asked: the request: devices and configuration.
        config: the resolved configuration.
        servers: host and actor of each shard, in the layout's order.
        away: devices whose workers do not take part now, but may return.
        control_offset: bytes of the user's commands that were read; reading some again changes nothing.
        entry: the data with which workers join the shards.
        buffers: names of the model's buffers that training changes.
        shapes: shapes of the streamed parameters.
        reference: reference speed of simulated devices.
    """

    asked: tuple[tuple[DeviceSpec, ...], TrainingConfig]
    config: TrainingConfig
    workers: tuple[WorkerRecord, ...]
    servers: tuple[tuple[str, str], ...]
    away: tuple[DeviceSpec, ...]
    draining: frozenset[str]
    control_offset: int
    stream: Stream
    entry: StreamInfo
    payload_bytes: int
    buffers: tuple[str, ...]
    shapes: Shapes
    reference: DeviceProfile | None
    watched: Watched = ()

    @property
    def actors(self) -> frozenset[str]:
        return frozenset((*(worker.actor for worker in self.workers), *(name for _, name in self.servers)))


def read(folder: Path) -> TakeoverState | None:
    """Read the file in a run's folder; None: there is none, or this version can't read it."""
    try:
        found = pickle.loads((folder / FILE).read_bytes())  # noqa: S301 - this user's own, see the module
    except Exception:  # noqa: BLE001 - no file, or whatever a pickle of another version makes of itself
        return None
    return found if isinstance(found, TakeoverState) else None


class TakeoverFile:
    """Keeps the file of a session up to date; without one if no takeover is possible. A context manager."""

    def __init__(self, request: Request) -> None:
        self._path, self._request = request.folder / FILE, request
        self._written: TakeoverState | None = None

    def __enter__(self) -> TakeoverFile:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # of a disk that has become read-only; that is said where the run needs it
            self._path.unlink(missing_ok=True)

    def keep(self, session: Session) -> None:
        """Write the state if it changed.

        A full disk prevents a takeover, but does not end the run.
        """
        if not self._request.lasting:
            return
        state = _of(session, self._request)
        if state is None or not _differs(state, self._written):
            return
        with contextlib.suppress(OSError):
            # No coordinator takes over after a loss of power, and steps must not wait for a slow disk.
            write_private(self._path, pickle.dumps(state), survives_power_loss=False)
            self._written = state


def _of(session: Session, request: Request) -> TakeoverState | None:
    """The state of a session; None: it can't be taken over."""
    config, joining = session.config, session.joining
    if not isinstance(session.source, Indexed) or session.stream is None or joining.entry is None:
        return None
    return TakeoverState(
        asked=(request.devices, request.config),
        config=config,
        workers=tuple(_record_of(member) for member in session.members),
        servers=tuple((server.host, server.actor.name) for server in session.servers),
        away=tuple(away.spec for away in session.away),
        draining=frozenset(session.membership.draining),
        control_offset=session.control.offset if session.control is not None else 0,
        stream=session.stream,
        entry=joining.entry,
        payload_bytes=session.payload_bytes,
        buffers=session.buffer_names,
        shapes=session.shapes,
        reference=joining.reference,
        watched=session.watched,
    )


def _record_of(member: WorkerHandle) -> WorkerRecord:
    return WorkerRecord(
        actor=member.actor.name,
        seat=member.seat,
        profile=member.track.current,
        simulated_speed=member.simulated_speed,
        clock=member.clock,
    )


def _differs(new: TakeoverState, old: TakeoverState | None) -> bool:
    """Whether a worker came or went, or a device became faster or slower by :data:`NOTICED`."""
    if old is None or new.actors != old.actors:
        return True
    before = {worker.actor: worker.profile.speed for worker in old.workers}
    if any(abs(worker.profile.speed / before[worker.actor] - 1) > NOTICED for worker in new.workers):
        return True
    others = ("servers", "away", "draining", "entry", "watched")
    return any(getattr(new, name) != getattr(old, name) for name in others)
