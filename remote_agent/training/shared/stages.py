"""Defines the messages of a pipeline's stages; a stage is some consecutive blocks of the model on one device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from remote_agent.training.config import TrainingConfig
from remote_agent.training.shared.figures import Figures
from remote_agent.training.shared.messages import Slice, Stamps
from remote_agent.training.shared.optimizer_options import Options

MICRO_BATCHES = 8
"""Micro-batches of a step, unless the settings say how large one is: with S stages (S - 1) / (7 + S) of a step is
spent on filling and emptying the pipeline."""


def micro_batch(config: TrainingConfig) -> int:
    """Samples of one micro-batch, which travels as a whole. Pure."""
    return config.unit or config.micro_batch or max(1, math.ceil(config.batch_size / MICRO_BATCHES))


StageWeights = dict[str, tuple[str, NDArray[np.uint8]]]
"""Weights of a stage, by name: their dtype, and their bytes."""


@dataclass(frozen=True, kw_only=True)
class StageRole:
    """A worker's part in the pipeline.

    Attributes:
        bounds: the first block of each stage, and the number of blocks.
        addresses: (host, port) of each stage.
        secret: what both ends of a connection must know.
        in_flight: micro-batches whose activations it may hold at once.
        codec: of activations and gradients on their way.
        paces: of a simulated device: the parts of a sample's time that its blocks' forward and backward take.
    """

    stage: int
    bounds: tuple[int, ...]
    addresses: tuple[tuple[str, int], ...]
    secret: bytes
    in_flight: int
    codec: str = "fp32"
    paces: tuple[float, float] = (0.0, 0.0)

    @property
    def stages(self) -> int:
        return len(self.bounds) - 1


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What makes a step's gradient sums the optimizer's step: their weight, the norm of their mean, the options."""

    step: int
    weight: float
    norm: float
    options: Options = ()


@dataclass(frozen=True, kw_only=True)
class StageTask:
    """A step: the whole batch; ``commit`` is the step before, where it is not applied yet."""

    step: int
    batch: Slice
    commit: Commit | None


@dataclass(frozen=True, kw_only=True)
class StageDone:
    """A stage has the gradient sums of all its weights.

    Attributes:
        loss: mean over the step's samples; of the last stage.
        weight: what the samples weigh; of the last stage.
        squares: sum of the squares of the gradient sums of the stage's own weights.
        compute_s: seconds of forward and backward.
        sent: bytes that went to other stages.
        sending_s: seconds in which it waited, while something was being sent to other stages.
        receiving_s: the same, while something was being received.
        scalars: figures that the loss gave beside the loss; of the last stage.
    """

    loss: float
    weight: float
    squares: float
    compute_s: float
    sent: int
    sending_s: float = 0.0
    receiving_s: float = 0.0
    stamps: Stamps = field(default_factory=Stamps)
    scalars: Figures = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StageBroken:
    """A stage can't go on since another one can't be reached."""

    cause: str


def commit_of(step: int, done: Sequence[StageDone], options: Options = ()) -> Commit | None:
    """What makes of all stages' sums the optimizer's step; None: no sample counts. Pure.

    Args:
        done: what the stages said, in their order.
        options: what the scheduler has set in the step.
    """
    weight = done[-1].weight
    if not weight:
        return None
    norm = math.sqrt(sum(each.squares for each in done)) / weight
    return Commit(step=step, weight=weight, norm=norm, options=options)
