"""Interprets the answers of returning workers: why a worker does not follow the run, and how fast it is."""

from __future__ import annotations

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.training.coordinator.members import Rejoining, WorkerHandle
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.recovery.policy import Died, Evidence
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import ShardLinkDown, StreamedResult
from remote_agent.training.shared.rpc import Ref

MAX_SLOWDOWN = 20.0
"""A slowdown of a late slice above this value counts as this value."""


def of_following(follows: Ref[ShardLinkDown | None]) -> Evidence | None:
    """The evidence of a call to follow that has ended, which it should not do before the worker takes part."""
    try:
        answer = rpc.get(follows, 0.0)
    except rpc.NoAnswer as error:
        return Died(rpc.describe(error))
    return Died(answer.cause if answer is not None else "it stopped following the run")


def learn_from_late(away: Rejoining, member: WorkerHandle) -> None:
    """Update the device's speed with the slice that was late."""
    if away.held is None or not away.is_late or away.lost:
        return
    samples = away.held.samples
    try:
        answer = rpc.get(away.held.answer, 0.0)
    except rpc.NoAnswer:
        return
    now = member.track.current
    if not isinstance(answer, StreamedResult) or not samples:
        return
    factor = min(MAX_SLOWDOWN, answer.compute_s / now.seconds(samples))
    if factor > 1:
        member.track = SpeedTrack(DeviceProfile(now.speed / factor, now.overhead_s * factor, now.max_batch))
