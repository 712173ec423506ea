"""Defines the costs of a model's blocks on a device, which decide the cut of the model.

Units: seconds, bytes; for one micro-batch of a fixed number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

BYTES_A_NUMBER = {"fp32": 4.0, "bf16": 2.0, "int8": 1 + 4 / 512}
"""Of each codec on the wire."""

LOSSY = tuple(codec for codec in BYTES_A_NUMBER if codec != "fp32")
"""Codecs that are measured, and tried where the user allows inexact ways and fixed none."""

TRAINED_COPIES = 3.0
"""Numbers beside each trained weight: its gradient, and two that the optimizer remembers, as Adam does."""


@dataclass(frozen=True, kw_only=True)
class BlockCost:
    """What one block takes on one device, for one micro-batch.

    Attributes:
        weights: bytes of its parameters and buffers.
        trained: bytes of those that are trained.
        held: bytes that it keeps from forward to backward.
        boundary: bytes that it is given by the block before it.
        numbers: how many numbers these are that a codec may write; 0: none.
    """

    forward_s: float
    backward_s: float
    weights: int
    trained: int
    held: int
    boundary: int
    numbers: int = 0

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, kw_only=True)
class Tied:
    """A weight that several blocks use, such as a tied embedding: each stage that has one of them holds it."""

    blocks: tuple[int, ...]
    size: int


@dataclass(frozen=True, kw_only=True)
class DeviceBlocks:
    """What a device measured.

    Attributes:
        room: bytes that a stage may take.
        host: that the device is on, as the network knows it.
        copies: bytes beside each trained one: its gradient, and what the optimizer remembers.
        workspace: bytes that the optimizer's step takes for a moment.
        update_s: of the optimizer's step, for each trained byte.
        tied: weights that several blocks use; the same for all devices.
    """

    blocks: tuple[BlockCost, ...]
    room: float
    host: str = ""
    copies: float = TRAINED_COPIES
    workspace: float = 0.0
    update_s: float = 0.0
    tied: tuple[Tied, ...] = ()

    def slower(self, factor: float) -> DeviceBlocks:
        """Of a device that takes ``factor`` times as long for forward and backward."""
        blocks = tuple(
            replace(each, forward_s=factor * each.forward_s, backward_s=factor * each.backward_s)
            for each in self.blocks
        )
        return replace(self, blocks=blocks)


def need(costs: DeviceBlocks, first: int, last: int, in_flight: int) -> float:
    """Bytes that blocks ``first`` to before ``last`` take, with the activations of so many micro-batches."""
    blocks = costs.blocks[first:last]
    held = sum(block.held + block.boundary for block in blocks)
    fixed = sum(block.weights + costs.copies * block.trained for block in blocks)
    return fixed + in_flight * held + (costs.workspace if any(block.trained for block in blocks) else 0.0)


def wire_bytes(block: BlockCost, codec: str) -> float:
    """Bytes of what a block is given, on the wire; a codec of a job's own counts as fp32."""
    if codec == "fp32" or not block.numbers:
        return float(block.boundary)
    return min(float(block.boundary), BYTES_A_NUMBER[codec] * block.numbers)
