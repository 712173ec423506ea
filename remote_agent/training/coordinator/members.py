"""Defines the coordinator's records of a run's parameter servers and workers, including workers that are away."""

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
    """A server actor on ``host``, which holds the whole parameter server or one shard."""

    host: str
    actor: Actor


@dataclass(eq=False)
class WorkerHandle:
    """A living worker: its actor, its current speed, and its clock.

    ``attempts`` is the number of failures since it last worked well; ``steady`` is the number of steps since then.
    ``entered`` is the first step in which it takes part. ``slowness`` is the time that its part of a cut model takes,
    over the measured time.
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
    slowness: float = 1.0

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
        """Call a method of the worker's engine."""
        return self.actor.call("engine", method, *arguments)

    def call_in(self, group: str, method: str, *arguments: Any) -> Ref[Any]:
        """Call a method of the worker's engine in another concurrency group, beside other calls."""
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
        """The parts of its time in a step of ``seconds`` with ``samples``; the rest is waiting time."""
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
        """Update its speed with one slice's compute time; ``rested``: the device had no slice for a while."""
        self.track = self.track.anew(samples, seconds) if rested else self.track.observe(samples, seconds)


@dataclass(frozen=True)
class HeldSlice:
    """The slice that a worker had when it failed: its samples, its answer, and the seconds until it is late."""

    samples: int
    answer: Ref[Any]
    late_s: float


@dataclass(eq=False)
class Rejoining:
    """A worker that does not take part now.

    Attributes:
        member: its handle; None: the worker is new.
        since: when it left, on the monotonic clock.
        lost: an event said that it is lost (or new), so another says when it takes part.
        held: the slice that it had when it failed; None: it had none.
        is_late: it was set aside because this slice was late.
        follows: its call to follow the run; None: its process does not run yet.
        opening: its process, while it starts.
        start_at: when to start it, on the monotonic clock; None: do not start it.
        attempts: as :class:`WorkerHandle` has it, for a new worker.
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
        """The record of a device without a worker so far, which gets one as soon as its host has a living node."""
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
        """Seconds without progress after which it counts as hung."""
        return ALONE_S if self.held is None else HUNG_DEADLINES * self.held.late_s

    @property
    def name(self) -> str:
        """The worker's name, or the device's if it has no worker yet."""
        return self.member.name if self.member is not None else f"{self.spec.host}/{self.spec.device}"


@dataclass(eq=False)
class MembershipRecord:
    """The workers of a run; only ``recovery.membership`` changes it.

    Attributes:
        away: workers that do not take part now, but may return.
        leaving: workers that get no new slices, but still finish their last ones.
    """

    members: list[WorkerHandle]
    away: list[Rejoining] = field(default_factory=list)
    draining: set[str] = field(default_factory=set)
    leaving: list[WorkerHandle] = field(default_factory=list)

    @property
    def wanted(self) -> tuple[DeviceSpec, ...]:
        """The devices that the user wants, including those that are away; all, if every host is drained."""
        every = [*(member.seat.spec for member in self.members), *(away.spec for away in self.away)]
        staying = [spec for spec in every if spec.host not in self.draining]
        return tuple(dict.fromkeys(staying or every))

    def to_leave(self) -> list[WorkerHandle]:
        """The workers on drained hosts; if every host is drained, those of the last one stay."""
        to_leave = [member for member in self.members if member.host in self.draining]
        if len(to_leave) < len(self.members):
            return to_leave
        return [member for member in to_leave if member.host != self.members[-1].host]
