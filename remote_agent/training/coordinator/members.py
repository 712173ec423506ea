"""A run's parameter servers and workers as the coordinator knows them, those that are away among them."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from remote_agent.protocol import DeviceSpec, Share, WorkerStep
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.placement import Placement
from remote_agent.training.deadlines import ALONE_S, HUNG_DEADLINES
from remote_agent.training.shared.clock import ClockOffset
from remote_agent.training.shared.messages import ShardLinkDown, Stamps
from remote_agent.training.shared.rpc import Actor, Ref


@dataclass(frozen=True, kw_only=True)
class Server:
    """A parameter server's actor on ``host``: all of the parameter server, or one shard."""

    host: str
    actor: Actor


@dataclass(eq=False)
class WorkerHandle:
    """A living worker: its actor, how fast it is now, and its clock.

    ``attempts`` is how often it failed since it last worked well; ``steady`` is the steps that it has made since then.
    ``entered`` is the first step that it has a part in.
    """

    seat: Placement
    actor: Actor
    track: SpeedTrack
    simulated_speed: float | None = None
    clock: ClockOffset = field(default_factory=ClockOffset)
    usual_call_s: float = 0.0
    attempts: int = 0
    steady: int = 0
    entered: int = 0

    @property
    def name(self) -> str:
        return self.seat.worker

    @property
    def host(self) -> str:
        return self.seat.spec.host

    @property
    def device(self) -> str:
        return self.seat.spec.device

    def call(self, method: str, *arguments: Any) -> Ref[Any]:
        """Call a method of its engine, the strategy's other half."""
        return self.actor.call("engine", method, *arguments)

    def call_in(self, group: str, method: str, *arguments: Any) -> Ref[Any]:
        """The same in a group of calls of its own, beside others."""
        return self.actor.call_in(group, "engine", method, *arguments)

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

    def took(self, stamps: Stamps) -> None:
        """Remember how long its calls usually take."""
        self.usual_call_s = max(0.9 * self.usual_call_s, stamps.left - stamps.entered)

    def observe(self, samples: int, seconds: float, rested: bool = False) -> None:
        """Take one slice's compute time into account, of a device that had none for a while if it ``rested``."""
        self.track = self.track.anew(samples, seconds) if rested else self.track.observe(samples, seconds)


@dataclass(frozen=True)
class HeldSlice:
    """The slice that a worker had when it failed: its samples, its answer, and after how many seconds it is late."""

    samples: int
    answer: Ref[Any]
    late_s: float


@dataclass(eq=False)
class Rejoining:
    """A worker that takes no part now.

    Attributes:
        spec: its device.
        member: itself; None: it is new.
        since: when it left, on the monotonic clock.
        lost: the user was told that it is lost (or new), and is told when it takes part.
        held: the slice that it had when it failed; None: it had none.
        is_late: it was set aside since that slice was late.
        follows: its call to follow the run; None: its process is not there yet.
        follows_since: when that was called.
        opening: its process, while that is being started.
        start_at: when to start it, on the monotonic clock; None: it is not to be started.
        attempts: as a member's, for one that is new.
    """

    spec: DeviceSpec
    member: WorkerHandle | None
    since: float
    lost: bool
    held: HeldSlice | None = None
    is_late: bool = False
    follows: Ref[ShardLinkDown | None] | None = None
    follows_since: float = 0.0
    opening: Future[WorkerHandle] | None = None
    start_at: float | None = None
    attempts: int = 0

    @classmethod
    def new(cls, spec: DeviceSpec) -> Rejoining:
        """A device that has had no worker so far: it gets one as soon as its host has a living node."""
        now = time.monotonic()
        return cls(spec, None, now, lost=True, start_at=now)

    @property
    def host(self) -> str:
        return self.spec.host

    @property
    def device(self) -> str:
        return self.spec.device

    @property
    def patience_s(self) -> float:
        """Seconds without a sign of progress after which it is taken to hang."""
        return ALONE_S if self.held is None else HUNG_DEADLINES * self.held.late_s

    @property
    def name(self) -> str:
        """The worker's; that of its device where it has none yet."""
        return self.member.name if self.member is not None else f"{self.spec.host}/{self.spec.device}"


@dataclass(eq=False)
class MembershipRecord:
    """The workers of a run. ``recovery.membership`` alone changes it.

    Attributes:
        members: the workers that take part.
        away: those that take no part now, and may again.
        draining: hosts whose workers are to leave.
        leaving: workers that take no part any more, and still do what they were given.
    """

    members: list[WorkerHandle]
    away: list[Rejoining] = field(default_factory=list)
    draining: set[str] = field(default_factory=set)
    leaving: list[WorkerHandle] = field(default_factory=list)

    def to_leave(self) -> list[WorkerHandle]:
        """The workers on drained hosts; where that is every host, the last one's stay."""
        to_leave = [member for member in self.members if member.host in self.draining]
        if len(to_leave) < len(self.members):
            return to_leave
        return [member for member in to_leave if member.host != self.members[-1].host]
