"""Compares how long a pipeline's stages compute with how long they did at first; says when another cut is better. Pure.

A device that is slow by itself was measured so, and its cut is right. One that becomes slower or faster by more than
:data:`~remote_agent.training.coordinator.plan.balance.LARGE_CHANGE` has the model cut anew in thought, with its blocks'
costs changed alike. If a step is shorter by that, and the rest of the run gains more than the cut costs
(``planning.self_check.pays``), it is carried out.

A stage's seconds are compared with those of its own first steps, not with what was measured before the cut: where
devices hold each other up, a new measurement would find what the last one found.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remote_agent.planning import cuts
from remote_agent.planning.cuts import Cut, Links
from remote_agent.planning.device_profile import DeviceProfile
from remote_agent.planning.pipeline import codecs_of
from remote_agent.planning.self_check import pays
from remote_agent.planning.sites import DoesNotFit
from remote_agent.planning.verdicts import pace
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan.balance import LARGE_CHANGE, SLOW_BELOW, SpeedTrack
from remote_agent.training.coordinator.strategies.pipeline_plan import PipelinePlan

FAR = -math.log(1 - LARGE_CHANGE)
"""Logarithm of a change that another cut is looked for after."""


@dataclass(frozen=True, kw_only=True)
class PipelineCheck:
    """What a run's steps say about its cut.

    Attributes:
        tracks: how fast each stage computes, in the cut's order.
        usual: of each stage, seconds over those planned, once that had settled; empty: it has not yet.
        looked: the same when another cut was looked for last, or when it had settled.
    """

    plan: PipelinePlan
    tracks: tuple[SpeedTrack, ...]
    usual: tuple[float, ...] = ()
    looked: tuple[float, ...] = ()

    @classmethod
    def of(cls, plan: PipelinePlan, batch: int) -> PipelineCheck:
        """Before the first step of ``batch`` samples."""
        planned = [stage.seconds * plan.micro_batches for stage in plan.cut.stages]
        return cls(plan=plan, tracks=tuple(SpeedTrack(DeviceProfile(batch / seconds)) for seconds in planned))

    def after(self, samples: int, computed_s: Sequence[float]) -> PipelineCheck:
        """With a further step, and the seconds that each stage computed in it."""
        seen = [track.observe(samples, each) for track, each in zip(self.tracks, computed_s, strict=True)]
        tracks = tuple(track.told(max(computed_s)) for track in seen)  # a step takes no less than its slowest stage
        found = dataclasses.replace(self, tracks=tracks)
        if self.usual or any(track.usual is None for track in tracks):
            return found
        return dataclasses.replace(found, usual=found.factors, looked=found.factors)

    @property
    def factors(self) -> tuple[float, ...]:
        """Seconds of each stage over those planned."""
        return tuple(track.factor for track in self.tracks)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Seconds of each stage over what it took at first."""
        if not self.usual:
            return (1.0,) * len(self.tracks)
        return tuple(now / usual for now, usual in zip(self.factors, self.usual, strict=True))

    @property
    def is_open(self) -> bool:
        """Whether a stage computes for longer or shorter than when another cut was looked for last."""
        known = zip(self.factors, self.looked or self.factors, strict=True)
        return any(abs(math.log(now / looked)) >= FAR for now, looked in known)

    def closed(self) -> PipelineCheck:
        """Once another cut was looked for."""
        return dataclasses.replace(self, looked=self.factors)

    def became(self, before: PipelineCheck) -> Iterator[tuple[int, float]]:
        """Stages that became slow in the last step, with their speed over the usual one; 1: that is back, or better.

        A device that was slow when the model was cut was not seen to become so.
        """
        for stage, (was, now) in enumerate(zip(before.tracks, self.tracks, strict=True)):
            if now.named is not was.named:
                yield stage, now.speed if now.named else 1.0
            elif now.jumped and now.speed * SLOW_BELOW > 1:
                yield stage, 1.0

    def better(self, config: TrainingConfig, links: Links, steps_left: float, pause_s: float) -> Cut | None:
        """Another cut that is worth to be carried out; None: there is none.

        Args:
            pause_s: what it costs to make the run ready again.
        """
        plan, cut = self.plan, self.plan.cut
        ratios = {stage.device: ratio for stage, ratio in zip(cut.stages, self.ratios, strict=True)}
        devices = [each.slower(ratios.get(number, 1.0)) for number, each in enumerate(plan.devices)]
        order = tuple(stage.device for stage in cut.stages)
        now_s = cuts.seconds_of(devices, plan.micro_batches, links, order, cut.bounds, cut.codec, cut.in_flight)
        try:
            best = cuts.cut(devices, plan.micro_batches, links, codecs=codecs_of(config), in_flight=config.in_flight)
        except DoesNotFit:
            return None
        return best if pays(now_s, best.seconds, steps_left, pause_s) else None

    def changes(self, names: Sequence[str]) -> list[str]:
        """``b/cpu runs at 25% of its predicted speed``, for each stage that changed; ``names`` are the workers'."""
        said = zip(names, self.ratios, strict=True)
        return [pace(name, 1 / ratio) for name, ratio in said if abs(math.log(ratio)) >= FAR]
