"""A pipeline's plan: the cut, as the run's events tell it, and as each stage is told its role. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from remote_agent.planning import cuts
from remote_agent.planning.blocks import DeviceBlocks, need
from remote_agent.planning.cuts import Cut, Links
from remote_agent.planning.survey import LOSSY
from remote_agent.planning.ways import COMPUTE, EXCHANGE
from remote_agent.protocol import Stage
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.members import WorkerHandle
from remote_agent.training.errors import JobError
from remote_agent.training.shared import flat
from remote_agent.training.shared.stages import StageRole, StageWeights, micro_batch
from remote_agent.training.user_code.checks import SAME
from remote_agent.training.worker.device.simulation import HEADROOM


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """What was decided.

    Attributes:
        cut: the stages; they name devices by their numbers.
        micro_batches: of a step.
        devices: what each takes.
        pace: what a simulated device's pace refers to.
    """

    cut: Cut
    micro_batches: int
    devices: tuple[DeviceBlocks, ...]
    pace: DeviceBlocks

    def role(self, stage: int, addresses: Sequence[tuple[str, int]], secret: bytes) -> StageRole:
        """What a stage is told.

        Args:
            stage: its number.
            addresses: where each of them listens.
            secret: of their connections.
        """
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
            f"{member.name}: blocks {stage.first + 1} to {stage.last} of {cut.bounds[-1]},"
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
            "terms": self._terms(),
            "reasons": (*reasons, *others),
            "stages": tuple(self._told(stage, member.name) for stage, member in zip(cut.stages, holding, strict=True)),
            "micro_batches": self.micro_batches,
            "in_flight": cut.in_flight,
        }

    def _terms(self) -> dict[str, float]:
        """All stages' computing, and what of links, the optimizer and calls is not hidden behind it."""
        compute = cuts.least_seconds([stage.seconds for stage in self.cut.stages], self.micro_batches)
        return {COMPUTE: compute, EXCHANGE: self.cut.seconds - compute}

    def _told(self, stage: cuts.StageCut, worker: str) -> Stage:
        memory = need(self.devices[stage.device], stage.first, stage.last, stage.in_flight)
        return Stage(worker=worker, first=stage.first, last=stage.last, seconds=stage.seconds, memory=int(memory))


def decided(
    config: TrainingConfig, members: Sequence[WorkerHandle], costs: Sequence[DeviceBlocks], links: Links
) -> PipelinePlan:
    """Decide.

    Args:
        config: the run's.
        members: all workers.
        costs: what each measured.
        links: between their hosts.

    Raises:
        DoesNotFit: the model, into the devices' memory.
    """
    micro_batches = -(-config.batch_size // micro_batch(config))
    pace = next((cost for cost, each in zip(costs, members, strict=True) if each.simulated_speed is not None), costs[0])
    devices = []
    for member, own in zip(members, costs, strict=True):
        blocks = own.blocks
        if member.simulated_speed is not None:
            blocks = pace.slower(HEADROOM / member.simulated_speed).blocks
        devices.append(dataclasses.replace(own, blocks=blocks, host=member.host))
    found = cuts.cut(devices, micro_batches, links, codecs=codecs_of(config), in_flight=config.in_flight)
    return PipelinePlan(cut=found, micro_batches=micro_batches, devices=tuple(devices), pace=pace)


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


def codecs_of(config: TrainingConfig) -> tuple[str, ...]:
    """What activations and gradients may be written by: as it was set, or what pays where inexact ways are allowed."""
    is_open = config.codec == "fp32" and config.allow == "inexact"
    return ("fp32", *LOSSY) if is_open else (config.codec,)
