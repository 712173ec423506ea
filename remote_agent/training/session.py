"""What a strategy works with: the crew of workers, the server, the order of samples, and the journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from remote_agent.protocol import Share, WorkerStep
from remote_agent.training.balance import SpeedTrack
from remote_agent.training.clock import ClockOffset
from remote_agent.training.config import TrainingConfig
from remote_agent.training.flat import Payload
from remote_agent.training.journal import Journal
from remote_agent.training.order import SampleOrder
from remote_agent.training.placement import Seat
from remote_agent.training.rpc import Actor, Ref


@dataclass(eq=False)
class Member:
    """A living worker: its actor, how fast it is now, and its clock."""

    seat: Seat
    actor: Actor
    track: SpeedTrack
    simulated_speed: float | None = None
    clock: ClockOffset = field(default_factory=ClockOffset)
    usual_call_s: float = 0.0

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.seat.worker

    @property
    def host(self) -> str:
        """The host that it runs on."""
        return self.seat.spec.host

    @property
    def device(self) -> str:
        """Its device, as the plan named it."""
        return self.seat.spec.device

    def share(self, samples: int) -> Share:
        """Its share of a step, with its profile as it is now."""
        profile = self.track.current
        return Share(
            worker=self.name,
            host=self.host,
            device=self.device,
            samples=samples,
            speed=profile.speed,
            overhead_s=profile.overhead_s,
            simulated_speed=self.simulated_speed,
        )

    def observe(self, samples: int, seconds: float) -> None:
        """Take one slice's compute time into account."""
        self.track = self.track.observe(samples, seconds)


@dataclass
class Session:
    """One run's moving parts. ``crew`` holds the living; a strategy removes those that it lost.

    ``weights`` are the server's first ones; None where the workers have them already, since they are streamed.
    ``reasons`` say which way weights and gradients go, and why.
    """

    config: TrainingConfig
    crew: list[Member]
    server: Actor
    server_host: str
    order: SampleOrder
    weights: Ref[Payload] | None
    payload_bytes: int
    buffer_names: tuple[str, ...]
    journal: Journal
    stopping: Callable[[], bool]
    reasons: tuple[str, ...] = ()
    server_clock: ClockOffset = field(default_factory=ClockOffset)

    @property
    def tracks(self) -> list[SpeedTrack]:
        """The living workers' tracks, in the crew's order."""
        return [member.track for member in self.crew]


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step that is applied. Times in seconds, sizes in bytes.

    ``weights`` fetches the weights after the step, until the next report is asked for; it raises one of Ray's errors.
    """

    step: int
    loss: float
    samples: int
    seconds: float
    bytes_pushed: int
    bytes_pulled: int
    workers: tuple[WorkerStep, ...]
    weights: Callable[[], Payload]

    def fields(self) -> dict[str, object]:
        """The fields of the protocol's ``Step`` event."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name != "weights"}
