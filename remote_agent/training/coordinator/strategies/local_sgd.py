"""Trains by local SGD: the workers make many local steps and exchange weights once a round. For slow links.

A round replaces a step: ``num_iterations`` counts rounds, and each has one ``step`` event (its loss is the mean over
the samples of all local steps). A local step on one device uses ``b = batch_size / devices`` samples, at least one,
fixed for the run. The fastest device makes ``local_steps`` of them in a round; a slower one makes as many as fit into
the same time, at least one. So all finish together, and a round uses the next ``sum(H_i * b)`` samples of the global
order. Each sample is still used once an epoch. ``worker.local_rounds`` has the exchange.

With ``overlap`` a round's exchange is hidden behind the next round's computation; the received weights are one round
old. Only the last round, and a round with a checkpoint, wait for their exchange.

With ``outer=none``, ``local_steps=1`` and plain SGD, a round equals a step of ``sync``.

When a worker is lost, its whole slice of the round is reissued to a living worker, which makes the same local steps
from the same weights (with the moments of its own optimizer, since those of the lost worker are gone). So no sample is
left out, but this round takes up to twice as long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.simulator import local_counts
from remote_agent.training.checkpoint.optimizer_state import Snapshot
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.coordinator.plan import balance
from remote_agent.training.coordinator.plan.balance import SpeedTrack
from remote_agent.training.coordinator.plan.run_plan import FirstCut
from remote_agent.training.coordinator.recovery import shard_snapshots
from remote_agent.training.coordinator.session import OpenStep, Session
from remote_agent.training.coordinator.share_balancer import ShareBalancer
from remote_agent.training.coordinator.strategies.step_in_flight import StepInFlight
from remote_agent.training.coordinator.strategies.streamed import Streamed

ROUNDS_BETWEEN = 4
"""Rounds between two cuts, unless a device's speed changed by :data:`~balance.LARGE_CHANGE`."""


def local_batch(config: TrainingConfig, devices: int) -> int:
    """Number of samples of one local step on each of the devices."""
    return config.local_batch or max(1, config.batch_size // devices)


def round_cut(most: int, batch: int, profiles: Sequence[DeviceProfile]) -> tuple[int, ...]:
    """Samples of each device in a round of local steps of ``batch`` samples, of which the fastest makes ``most``."""
    counts = local_counts(most, [profile.seconds(batch) for profile in profiles])
    return tuple(batch * count for count in counts)


def better_rounds(most: int, batch: int, cut: Sequence[int], tracks: Sequence[SpeedTrack]) -> tuple[int, ...] | None:
    """Samples of each device in the next rounds; None: the present ``cut`` is nearly as fast."""
    profiles = [track.current for track in tracks]
    fresh = round_cut(most, batch, profiles)
    gain = _rate(fresh, batch, profiles) / _rate(cut, batch, profiles)
    return fresh if gain > 1 / (1 - balance.least_gain(tracks)) else None


def round_seconds(cut: Sequence[int], batch: int, profiles: Sequence[DeviceProfile]) -> float:
    """Predicted compute time of a round, which is that of the slowest device."""
    return max(samples // batch * profile.seconds(batch) for samples, profile in zip(cut, profiles, strict=True))


def _rate(cut: Sequence[int], batch: int, profiles: Sequence[DeviceProfile]) -> float:
    return sum(cut) / round_seconds(cut, batch, profiles)


class RoundBalancer(ShareBalancer):
    """Decides how many samples each living worker gets in the next round; ``batch``: samples of one local step."""

    _in_units = False

    def __init__(self, session: Session) -> None:
        self.batch = local_batch(session.config, len(session.members))
        super().__init__(session)

    def adapt(self, step: int, observed: Iterable[tuple[WorkerHandle, int, float]]) -> None:
        """Update speeds and shares with the times of a round, as if it were a step of one local batch."""
        super().adapt(
            step, ((member, self.batch, seconds * self.batch / samples) for member, samples, seconds in observed)
        )

    def _fresh_cut(self) -> tuple[int, ...]:
        return round_cut(
            self._session.config.local_steps, self.batch, [track.current for track in self._session.tracks]
        )

    def _better_cut(self, steps_since: int) -> tuple[int, ...] | None:
        tracks = self._session.tracks
        if steps_since < ROUNDS_BETWEEN and not any(track.jumped for track in tracks):
            return None
        return better_rounds(self._session.config.local_steps, self.batch, self.cut, tracks)


class LocalSgd(Streamed):
    """See the module."""

    @classmethod
    def fixed(cls, config: TrainingConfig, devices: int) -> TrainingConfig:
        return dataclasses.replace(config, local_batch=local_batch(config, devices))

    @classmethod
    def first_cut(cls, config: TrainingConfig, profiles: Sequence[DeviceProfile], least: int) -> FirstCut:
        del least
        batch = local_batch(config, len(profiles))
        cut = round_cut(config.local_steps, batch, profiles)
        steps = ", ".join(str(samples // batch) for samples in cut)
        about = f"a round is {steps} local steps of {batch} samples; outer={config.outer}"
        about += ", exchanged while the next one is computed" if config.overlap else ""
        return FirstCut(samples=cut, seconds=round_seconds(cut, batch, profiles), about=(about,))

    def _new_balancer(self, session: Session) -> ShareBalancer:
        balancer = RoundBalancer(session)
        self._local_batch = balancer.batch
        self._taken = session.order.start
        return balancer

    def _span(self, step: int) -> tuple[int, int]:
        """The next positions of the order; each round is issued once, in order, and the last may be shorter."""
        begin, self._taken = self._taken, self._session.order.until(self._taken + sum(self._balancer.cut))
        return begin, self._taken

    def _resume(self, open_step: OpenStep) -> StepInFlight:
        current = super()._resume(open_step)
        self._taken = current.end
        return current

    def _is_delayed(self, current: StepInFlight) -> bool:
        session = self._session
        return session.config.overlap and session.goes_on(current.step, current.end) and not self._is_saved(current)

    def _snapshot(self) -> Snapshot:
        """Keep the state of the outer optimizer, and of each living worker's own optimizer."""
        return shard_snapshots.of_shards(self._session, self._heartbeat, inner=True)
