"""The cut that a pipeline's run begins with, as the run makes it and as a plan tells it before. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.planning import cuts
from remote_agent.planning.blocks import LOSSY, DeviceBlocks, need
from remote_agent.planning.cuts import Cut, Links, StageCut
from remote_agent.planning.sites import DoesNotFit
from remote_agent.planning.survey import Survey
from remote_agent.planning.ways import COMPUTE, EXCHANGE
from remote_agent.settings import TrainingConfig

LINKS = "the links between the stages"


@dataclass(frozen=True, kw_only=True)
class CutPlan:
    """What was decided; ``cut``: the stages; they name devices by their numbers."""

    cut: Cut
    micro_batches: int
    devices: tuple[DeviceBlocks, ...]

    @property
    def terms(self) -> dict[str, float]:
        """All stages' computing, and what of links, the optimizer and calls is not hidden behind it."""
        compute = cuts.least_seconds([stage.seconds for stage in self.cut.stages], self.micro_batches)
        return {COMPUTE: compute, EXCHANGE: self.cut.seconds - compute}

    def memory(self, stage: StageCut) -> int:
        """Bytes that a stage takes on its device."""
        return int(need(self.devices[stage.device], stage.first, stage.last, stage.in_flight))

    def bound(self, names: Sequence[str]) -> str:
        """What limits a step, in words; ``names`` are the devices'."""
        if self.terms[EXCHANGE] > self.terms[COMPUTE]:
            return LINKS
        return f"computing on {names[max(self.cut.stages, key=lambda stage: stage.seconds).device]}"


def codecs_of(config: TrainingConfig) -> tuple[str, ...]:
    """What activations and gradients may be written by: as it was set, or what pays where inexact ways are allowed."""
    is_open = config.codec == "fp32" and config.allow == "inexact"
    return ("fp32", *LOSSY) if is_open else (config.codec,)


def decided(devices: Sequence[DeviceBlocks], micro_batches: int, links: Links, config: TrainingConfig) -> CutPlan:
    """Decide.

    Args:
        devices: what each takes for a micro-batch.

    Raises:
        DoesNotFit: the model, into the devices' memory.
    """
    found = cuts.cut(devices, micro_batches, links, codecs=codecs_of(config), in_flight=config.in_flight)
    return CutPlan(cut=found, micro_batches=micro_batches, devices=tuple(devices))


def is_cut(survey: Survey) -> bool:
    """Whether a survey is of the model's blocks, as it is to be cut between them."""
    return any(device.blocks is not None for host in survey.hosts for device in host.devices)


def names_of(survey: Survey) -> tuple[str, ...]:
    """Of the devices that a survey's cut numbers."""
    return tuple(device.name for host in survey.hosts for device in host.devices if device.blocks is not None)


def planned(survey: Survey, config: TrainingConfig) -> CutPlan:
    """The cut for a fleet as it was surveyed; raises DoesNotFit if the model does not fit into its memory."""
    devices = [device.blocks for host in survey.hosts for device in host.devices if device.blocks is not None]
    if not devices:
        raise DoesNotFit("no device is left that the model's blocks were measured on")
    micro_batches = -(-survey.work.batch // survey.work.micro_batch)
    return decided(devices, micro_batches, Links.of(survey), config)
