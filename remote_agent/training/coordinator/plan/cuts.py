"""Which device gets which blocks of the model, decided from what was measured. Pure.

A step of m micro-batches takes about the sum of the stages' times, to fill the pipeline, and (m - 1) times the longest
one's. For a bound on the longest, the cut with the least sum is found over all sets of devices and all orders of them
(dynamic programming over how many blocks the devices of a set have together); bounds are tried from the smallest that
any cut reaches upwards, in steps of :data:`BOUND_STEP`: so the cut takes at most that much longer than the best.

A device has room for a stage's weights, gradients and what the optimizer remembers (two numbers a weight, as Adam), and
for the activations of the micro-batches that are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remote_agent.protocol import Stage
from remote_agent.training.shared.stages import DeviceCosts

BOUND_STEP = 1.05
MAX_BOUNDS = 60
TRAINED_COPIES = 3
"""Numbers beside each trained weight: its gradient, and two that the optimizer remembers."""

AHEAD = 2
"""Micro-batches in flight beyond one for each stage, so that links are not waited for."""


@dataclass(frozen=True, kw_only=True)
class StageCut:
    """Blocks ``first`` to before ``last`` on device number ``device``; ``seconds`` for one micro-batch."""

    device: int
    first: int
    last: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The stages in their order, the predicted seconds of a step, and how many micro-batches may be in flight."""

    stages: tuple[StageCut, ...]
    seconds: float
    in_flight: int

    @property
    def bounds(self) -> tuple[int, ...]:
        """The first block of each stage, and the number of blocks."""
        return (*(stage.first for stage in self.stages), self.stages[-1].last)


class DoesNotFit(ValueError):
    """The devices have too little memory; says how much is missing."""


def in_flight_of(stages: int, micro_batches: int, wanted: int = 0) -> int:
    """Micro-batches on their way at once."""
    return min(micro_batches, wanted or stages + AHEAD)


def step_seconds(stages: Sequence[StageCut], micro_batches: int) -> float:
    """Predicted seconds of a step."""
    times = [stage.seconds for stage in stages]
    return sum(times) + (micro_batches - 1) * max(times)


def need(costs: DeviceCosts, first: int, last: int, in_flight: int) -> float:
    """Bytes that a stage takes."""
    return sum(
        block.weights + TRAINED_COPIES * block.trained + in_flight * (block.held + block.boundary)
        for block in costs.blocks[first:last]
    )


def cut(devices: Sequence[DeviceCosts], micro_batches: int, wanted_in_flight: int = 0) -> Cut:
    """The stages.

    Args:
        devices: what each measured of the same blocks.
        micro_batches: of a step.
        wanted_in_flight: as it was set; 0: as many as pay.

    Raises:
        DoesNotFit: there is none.
    """
    blocks = len(devices[0].blocks)
    stages = min(len(devices), blocks)
    in_flight = in_flight_of(stages, micro_batches, wanted_in_flight)
    times = [_times(device, in_flight) for device in devices]
    least = _least_bound(times, blocks)
    if math.isinf(least):
        raise DoesNotFit(_missing(devices, in_flight))
    best: Cut | None = None
    bound = least
    for _ in range(MAX_BOUNDS):
        found = _within(times, blocks, bound * (1 + 1e-9))
        assert found is not None, "the bound is reached"
        seconds = step_seconds(found, micro_batches)
        if best is None or seconds < best.seconds:
            flying = in_flight_of(len(found), micro_batches, wanted_in_flight)
            best = Cut(stages=found, seconds=seconds, in_flight=flying)
        if micro_batches * bound >= best.seconds:
            break  # whatever has a longer stage takes longer
        bound *= BOUND_STEP
    assert best is not None, "one bound was tried"
    return best


def told(found: Cut, devices: Sequence[DeviceCosts], workers: Sequence[str]) -> tuple[Stage, ...]:
    """The stages as a run's plan names them; ``workers`` are those that have them, in the stages' order."""
    return tuple(
        Stage(
            worker=worker,
            first=stage.first,
            last=stage.last,
            seconds=stage.seconds,
            memory=int(need(devices[stage.device], stage.first, stage.last, found.in_flight)),
        )
        for worker, stage in zip(workers, found.stages, strict=True)
    )


def _times(costs: DeviceCosts, in_flight: int) -> list[list[float]]:
    """Seconds for blocks i to before j, infinite where they do not fit."""
    blocks = len(costs.blocks)
    result = [[math.inf] * (blocks + 1) for _ in range(blocks + 1)]
    for first in range(blocks):
        seconds = bytes_ = 0.0
        for last in range(first + 1, blocks + 1):
            block = costs.blocks[last - 1]
            seconds += block.seconds
            bytes_ += need(costs, last - 1, last, in_flight)
            if bytes_ > costs.room:
                break
            result[first][last] = seconds
    return result


def _least_bound(times: Sequence[list[list[float]]], blocks: int) -> float:
    """The smallest longest stage of any cut; infinite: there is no cut."""
    best = [[math.inf] * (blocks + 1) for _ in range(1 << len(times))]
    best[0][0] = 0.0
    for used in range(1 << len(times)):
        for done in range(blocks):
            if math.isinf(best[used][done]):
                continue
            for device, own in enumerate(times):
                if used >> device & 1:
                    continue
                row = best[used | 1 << device]
                for last in range(done + 1, blocks + 1):
                    row[last] = min(row[last], max(best[used][done], own[done][last]))
    return min(row[blocks] for row in best)


def _within(times: Sequence[list[list[float]]], blocks: int, bound: float) -> tuple[StageCut, ...] | None:
    """The cut with the least sum whose stages take no longer than ``bound``."""
    best = [[math.inf] * (blocks + 1) for _ in range(1 << len(times))]
    came: dict[tuple[int, int], tuple[int, int, int]] = {}
    best[0][0] = 0.0
    for used in range(1 << len(times)):
        for done in range(blocks):
            if math.isinf(best[used][done]):
                continue
            for device, own in enumerate(times):
                if used >> device & 1:
                    continue
                after = used | 1 << device
                for last in range(done + 1, blocks + 1):
                    seconds = own[done][last]
                    if seconds > bound:
                        break
                    if best[used][done] + seconds < best[after][last]:
                        best[after][last] = best[used][done] + seconds
                        came[after, last] = (used, done, device)
    used = min(range(1 << len(times)), key=lambda each: best[each][blocks])
    if math.isinf(best[used][blocks]):
        return None
    found: list[StageCut] = []
    last = blocks
    while used:
        before, first, device = came[used, last]
        found.append(StageCut(device=device, first=first, last=last, seconds=times[device][first][last]))
        used, last = before, first
    return tuple(reversed(found))


def _missing(devices: Sequence[DeviceCosts], in_flight: int) -> str:
    needed = need(devices[0], 0, len(devices[0].blocks), in_flight)
    room = sum(device.room for device in devices)
    largest = max(need(devices[0], block, block + 1, in_flight) for block in range(len(devices[0].blocks)))
    said = f"the model needs {needed / 1e9:.2f} GB in training"
    if needed > room:
        missing = f"{(needed - room) / 1e9:.2f} GB are missing"
        return f"{said}, and the devices have room for {room / 1e9:.2f} GB together: {missing}"
    return f"{said}, its largest block {largest / 1e9:.2f} GB, and no cut fits into the devices' {room / 1e9:.2f} GB"
