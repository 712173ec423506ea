"""What a strategy works with: the crew of workers, the server, the order of samples, and the journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_agent.protocol import Share, WorkerStep
from remote_agent.training.clock import ClockOffset
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.data.record import SliceSpan
from remote_agent.training.data.sources import Source
from remote_agent.training.flat import Payload
from remote_agent.training.journal import Journal
from remote_agent.training.messages import StreamedTask
from remote_agent.training.placing.placement import Seat
from remote_agent.training.rpc import Actor, Ref
from remote_agent.training.saving.optimizer_state import Shapes, Snapshot, TrainingState
from remote_agent.training.speed.balance import SpeedTrack

if TYPE_CHECKING:
    from remote_agent.training.actors import Servers
    from remote_agent.training.faults.control import Control
    from remote_agent.training.faults.joining import Joining
    from remote_agent.training.strategies.away import Away
    from remote_agent.training.transfer import Stream


@dataclass(frozen=True, kw_only=True)
class Server:
    """A parameter server's actor on ``host``: all of the parameter server, or one shard."""

    host: str
    actor: Actor


@dataclass(eq=False)
class Member:
    """A living worker: its actor, how fast it is now, and its clock.

    ``attempts`` is how often it failed since it last worked well; ``steady`` is the steps that it has made since then.
    """

    seat: Seat
    actor: Actor
    track: SpeedTrack
    simulated_speed: float | None = None
    clock: ClockOffset = field(default_factory=ClockOffset)
    usual_call_s: float = 0.0
    attempts: int = 0
    steady: int = 0

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

    def times(
        self, samples: int, seconds: float, *, compute_s: float, push_s: float = 0.0, pull_s: float = 0.0
    ) -> WorkerStep:
        """Where its time went in a step of ``seconds`` in which it did ``samples``: what is left, it waited."""
        return WorkerStep(
            worker=self.name,
            host=self.host,
            device=self.device,
            samples=samples,
            compute_s=compute_s,
            push_s=push_s,
            pull_s=pull_s,
            wait_s=max(0.0, seconds - compute_s - push_s - pull_s),
        )

    def observe(self, samples: int, seconds: float, rested: bool = False) -> None:
        """Take one slice's compute time into account, of a device that had none for a while if it ``rested``."""
        self.track = self.track.anew(samples, seconds) if rested else self.track.observe(samples, seconds)


@dataclass(frozen=True, kw_only=True)
class OpenStep:
    """A step that a coordinator had issued, to some workers at least, when it was killed.

    Attributes:
        common: its task, without a slice.
        begun: what each worker was given that has begun it, or done it, by the worker's name.
        earlier: the steps that each of the others was not given, and has to go through first.
    """

    common: StreamedTask
    begun: Mapping[str, StreamedTask]
    earlier: Mapping[str, tuple[StreamedTask, ...]]


_OVERLAP = 3
"""With ``overlap`` a round is issued this many reports before its own."""


def least_slice(buffers: Collection[str]) -> int:
    """Samples of the smallest slice of a model with these changing ``buffers``: one sample alone has no statistics."""
    return 2 if buffers else 1


@dataclass
class Session:
    """One run's moving parts. ``crew`` holds the living; a strategy removes those that it lost.

    ``order`` says which samples are next, where the run ends, and how many steps were made before, by the run that this
    one goes on from: the first step is ``order.done + 1``.
    ``source`` is where the samples come from.
    ``servers`` are the shards, in the layout's order; one that holds everything where weights are not streamed.
    ``weights`` are the server's first ones; None where the workers have them already, since they are streamed.
    ``shapes`` are those of the streamed parameters, in the order of the flat buffer; empty when nothing is streamed.
    ``reasons`` say which way weights and gradients go, and why.
    ``first_state`` is what the optimizer remembers before the first step; None: only the shards know it.
    ``copy_due`` is the step after which the shards' state is copied next (``copies``); 0: it is not.
    ``checkpoint_due`` is the next one that is kept as it is time for that (``safeguard``); 0: none is.
    ``stream`` and ``pool`` are what lost shards are started again with (``restoring``).
    ``joining`` starts workers while the run is on; None where the strategy's workers can't join later.
    ``control`` tells what the user wants of the run while it is on.
    ``away`` are workers that take no part now and may again, ``draining`` the hosts that are to leave (both are the
    ``roster``'s).
    ``coordinator`` is whom the workers heed: not empty where this one took them over from one that was killed;
    ``open_step`` is what it has to end first, then, ``told`` the last step that has an event already, and ``news`` why
    the batch may be cut in another way than it was.
    """

    config: TrainingConfig
    crew: list[Member]
    servers: tuple[Server, ...]
    order: SampleOrder
    source: Source
    weights: Ref[Payload] | None
    payload_bytes: int
    buffer_names: tuple[str, ...]
    journal: Journal
    stopping: Callable[[], bool]
    reasons: tuple[str, ...] = ()
    shapes: Shapes = field(default_factory=dict)
    server_clock: ClockOffset = field(default_factory=ClockOffset)
    first_state: TrainingState | None = field(default_factory=TrainingState)
    copy_due: int = 0
    checkpoint_due: int = 0
    stream: Stream | None = None
    pool: Servers | None = None
    joining: Joining | None = None
    control: Control | None = None
    away: list[Away] = field(default_factory=list)
    draining: set[str] = field(default_factory=set)
    coordinator: str = ""
    open_step: OpenStep | None = None
    told: int = 0
    news: str = ""

    def goes_on(self, step: int, taken: int) -> bool:
        """Whether another step follows ``step``, when the positions of the order up to ``taken`` have been used."""
        if self.stopping() or (self.order.limit is None and step >= self.config.num_iterations):
            return False
        return self.order.until(taken + 1) > taken

    def saves(self, step: int) -> bool:
        """Whether a checkpoint or copy is made of ``step``, which has to stay as it is until it was reported."""
        return self.is_checkpoint(step) or step == self.copy_due

    def is_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is made after ``step``."""
        every = self.config.checkpoint_every
        return step % every == 0 if every else step == self.checkpoint_due

    def soonest(self, step: int) -> int:
        """The next step that can be kept, once ``step`` was made: those before are under way in another manner."""
        return step + (_OVERLAP if self.config.overlap else 1)

    @property
    def least_slice(self) -> int:
        """Samples of the smallest slice; see :func:`least_slice`."""
        return least_slice(self.buffer_names)

    @property
    def server(self) -> Actor:
        """The only server's, or the first shard's."""
        return self.servers[0].actor

    @property
    def server_host(self) -> str:
        """Where it is."""
        return self.servers[0].host

    @property
    def tracks(self) -> list[SpeedTrack]:
        """The living workers' tracks, in the crew's order."""
        return [member.track for member in self.crew]


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step that is applied. Times in seconds, sizes in bytes.

    ``weights`` fetches the weights after the step, until the next report is asked for; it raises one of Ray's errors.
    ``slices`` are the slices that were counted in the step, for the run's record (``record.SliceSpan``): together they
    are the step's samples, each once. ``snapshot`` has what the optimizer remembers kept as it is after the step (see
    ``optimizer_state.Snapshot``), also until the next report is asked for, and raises one of Ray's errors; None: the
    strategy can't, and a run that goes on from its checkpoints starts with a fresh optimizer.
    """

    step: int
    loss: float
    samples: int
    seconds: float
    bytes_pushed: int
    bytes_pulled: int
    workers: tuple[WorkerStep, ...]
    weights: Callable[[], Payload]
    slices: tuple[SliceSpan, ...] = ()
    snapshot: Callable[[], Snapshot] | None = None

    def fields(self) -> dict[str, object]:
        """The fields of the protocol's ``Step`` event."""
        ours = ("weights", "slices", "snapshot")
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name not in ours}
