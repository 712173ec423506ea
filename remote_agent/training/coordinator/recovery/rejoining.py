"""A worker that takes no part in a run now: where it is on its way back."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from remote_agent.protocol import DeviceSpec
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.recovery.policy import Died, Evidence
from remote_agent.training.deadlines import ALONE_S, HUNG_DEADLINES
from remote_agent.training.shared import rpc
from remote_agent.training.shared.device_profile import DeviceProfile
from remote_agent.training.shared.messages import ShardLinkDown, StaleResult, StreamedResult
from remote_agent.training.shared.rpc import Ref

MAX_SLOWDOWN = 20.0
"""A slice that was late by more than this says no more about the device than one that was late by this."""


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
    def patience_s(self) -> float:
        """Seconds without a sign of progress after which it is taken to hang."""
        return ALONE_S if self.held is None else HUNG_DEADLINES * self.held.late_s

    @property
    def name(self) -> str:
        """The worker's; that of its device where it has none yet."""
        return self.member.name if self.member is not None else f"{self.spec.host}/{self.spec.device}"


def of_following(follows: Ref[ShardLinkDown | None]) -> Evidence | None:
    """What a call to follow that has ended says; it does not end before the worker takes part."""
    try:
        answer = rpc.get(follows, 0.0)
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
        return Died(rpc.describe(error))
    return Died(answer.cause if answer is not None else "it stopped following the run")


def learn_from_late(away: Rejoining, member: WorkerHandle) -> None:
    """Let the slice that was late say how fast the device is now."""
    if away.held is None or not away.is_late or away.lost:
        return
    samples = away.held.samples
    try:
        answer = rpc.get(away.held.answer, 0.0)
    except (*rpc.Lost, rpc.CallFailed, rpc.Timeout):
        return
    now = member.track.current
    if not isinstance(answer, StreamedResult | StaleResult) or not samples:
        return
    factor = min(MAX_SLOWDOWN, answer.compute_s / now.seconds(samples))
    if factor > 1:
        member.track = SpeedTrack(DeviceProfile(now.speed / factor, now.overhead_s * factor, now.max_batch))
