"""A pipeline's plan: the cut, as the run's events tell it, and as each stage is told its role. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from remote_agent.planning import pipeline
from remote_agent.planning.blocks import DeviceBlocks
from remote_agent.planning.cuts import Links, StageCut
from remote_agent.planning.pipeline import CutPlan
from remote_agent.planning.survey import Device, Survey
from remote_agent.protocol import Stage
from remote_agent.training.checkpoint.optimizer_state import BESIDE, Packed, States, packed
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.stages import StageRole, StageWeights, micro_batch
from remote_agent.training.user_code.checks import SAME
from remote_agent.training.worker.device.simulation import HEADROOM


@dataclass(frozen=True, kw_only=True)
class PipelinePlan(CutPlan):
    """What was decided, by the members' numbers; ``pace``: what a simulated device's pace refers to."""

    pace: DeviceBlocks

    def role(self, stage: int, addresses: Sequence[tuple[str, int]], secret: bytes) -> StageRole:
        """What a stage is told."""
        own, total = self.cut.stages[stage], sum(block.seconds for block in self.pace.blocks)
        blocks = self.pace.blocks[own.first : own.last]
        return StageRole(
            stage=stage,
            bounds=self.cut.bounds,
            addresses=tuple(addresses),
            secret=secret,
            in_flight=own.in_flight,
            codec=self.cut.codec,
            paces=(sum(each.forward_s for each in blocks) / total, sum(each.backward_s for each in blocks) / total),
        )

    def fields(self, config: TrainingConfig, members: Sequence[WorkerHandle], others: Sequence[str]) -> dict[str, Any]:
        """Of the event that tells the plan; ``others`` are further reasons."""
        cut, samples = self.cut, micro_batch(config)
        holding = [members[stage.device] for stage in cut.stages]
        shares = dict.fromkeys(members, 0) | dict.fromkeys(holding, config.batch_size)
        reasons = [
            f"{member.name}: {_blocks(stage.first, stage.last)} of {cut.bounds[-1]},"
            f" {stage.seconds * 1e3:.1f} ms a micro-batch"
            for member, stage in zip(holding, cut.stages, strict=True)
        ]
        reasons += [
            f"{each.name}: no blocks, a step is shorter without it" for each, size in shares.items() if not size
        ]
        reasons.append(
            f"{self.micro_batches} micro-batches of {samples} samples, {cut.in_flight} in flight, sent as {cut.codec};"
            " when a stage is lost the run goes back to its newest checkpoint"
        )
        return {
            "strategy": config.strategy,
            "shares": tuple(member.share(size) for member, size in shares.items()),
            "iterations": config.num_iterations,
            "predicted_step_s": cut.seconds,
            "terms": self.terms,
            "reasons": (*reasons, *others),
            "stages": tuple(self._told(stage, member.name) for stage, member in zip(cut.stages, holding, strict=True)),
            "micro_batches": self.micro_batches,
            "in_flight": cut.in_flight,
        }

    def _told(self, stage: StageCut, worker: str) -> Stage:
        return Stage(
            worker=worker, first=stage.first, last=stage.last, seconds=stage.seconds, memory=self.memory(stage)
        )


def decided(
    config: TrainingConfig, members: Sequence[WorkerHandle], costs: Sequence[DeviceBlocks], links: Links
) -> PipelinePlan:
    """Decide.

    Raises:
        DoesNotFit: the model, into the devices' memory.
    """
    devices = paced(members, costs)
    found = pipeline.decided(devices, -(-config.batch_size // micro_batch(config)), links, config)
    pace = next((cost for cost, each in zip(costs, members, strict=True) if each.simulated_speed is not None), costs[0])
    return PipelinePlan(cut=found.cut, micro_batches=found.micro_batches, devices=devices, pace=pace)


def paced(members: Sequence[WorkerHandle], costs: Sequence[DeviceBlocks]) -> tuple[DeviceBlocks, ...]:
    """What each device takes in training: a simulated one as much longer as it is to be slower."""
    pace = next((cost for cost, each in zip(costs, members, strict=True) if each.simulated_speed is not None), None)
    devices = []
    for member, own in zip(members, costs, strict=True):
        blocks = own.blocks
        if member.simulated_speed is not None and pace is not None:
            blocks = pace.slower(HEADROOM / member.simulated_speed).blocks
        devices.append(dataclasses.replace(own, blocks=blocks, host=member.host).slower(member.slowness))
    return tuple(devices)


def with_blocks(
    survey: Survey, config: TrainingConfig, members: Sequence[WorkerHandle], costs: Sequence[DeviceBlocks]
) -> Survey:
    """The survey, for a plan of the same job: with what each device measured of the model's blocks."""
    found = dict(zip([member.name for member in members], paced(members, costs), strict=True))

    def device(each: Device) -> Device:
        return dataclasses.replace(each, blocks=found.get(each.name))

    hosts = tuple(
        dataclasses.replace(host, devices=tuple(device(each) for each in host.devices)) for host in survey.hosts
    )
    work = dataclasses.replace(survey.work, micro_batch=micro_batch(config))
    return dataclasses.replace(survey, hosts=hosts, work=work)


def differing(weights: Mapping[str, Tensor], there: Sequence[Mapping[str, str]]) -> list[StageWeights]:
    """What each stage has to be sent: tensors of its own that are not there already, as ``create_model`` gave them.

    Args:
        weights: of the whole model, by name.
        there: fingerprints of each stage's tensors, by name.

    Raises:
        JobError: the stages have another model.
    """
    named = set().union(*there)
    known = {weights[name].data_ptr() for name in named & weights.keys()}  # a tied one has several names
    different = named - weights.keys() | {
        name for name in weights.keys() - named if weights[name].data_ptr() not in known
    }
    if different:
        cause = "create_model gave another model on this host than on the coordinator's"
        raise JobError(f"{cause}: {min(different)} is in one of them only", hint=SAME)
    own = {name: flat.fingerprint(weights[name]) for name in named}
    return [
        {
            name: (str(weights[name].dtype), flat.to_bytes(weights[name].contiguous().reshape(-1)))
            for name, found in stage.items()
            if found != own[name]
        }
        for stage in there
    ]


def apart(states: States, there: Sequence[Mapping[str, str]]) -> list[Packed]:
    """What each stage has to be sent of what the optimizer remembers; ``there`` as for :func:`differing`."""
    return [packed({name: kept for name, kept in states.items() if name in stage or name == BESIDE}) for stage in there]


def _blocks(first: int, last: int) -> str:
    return f"blocks {first + 1} to {last}" if last > first + 1 else f"block {last}"
