"""The cut of a model among devices, against all cuts that there are."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from remote_agent.training.coordinator.plan.cuts import BOUND_STEP, DoesNotFit, StageCut, cut, need, step_seconds
from remote_agent.training.shared.stages import BlockCost, DeviceCosts


def _devices(random_: random.Random, blocks: int, count: int) -> list[DeviceCosts]:
    sizes = [random_.randint(1, 9) for _ in range(blocks)]
    return [
        DeviceCosts(
            blocks=tuple(
                BlockCost(
                    forward_s=size / speed,
                    backward_s=2 * size / speed,
                    weights=size * 100,
                    trained=size * 100,
                    held=size,
                    boundary=1,
                )
                for size in sizes
            ),
            room=random_.choice([math.inf, 450 * sum(sizes) / count, 900 * sum(sizes) / count]),
        )
        for speed in (random_.choice([1.0, 2.0, 5.0]) for _ in range(count))
    ]


def _every_cut(devices: list[DeviceCosts], in_flight: int, micro_batches: int) -> float:
    blocks, best = len(devices[0].blocks), math.inf
    for count in range(1, min(len(devices), blocks) + 1):
        for order in itertools.permutations(range(len(devices)), count):
            for inner in itertools.combinations(range(1, blocks), count - 1):
                bounds = (0, *inner, blocks)
                stages = [
                    StageCut(
                        device=device,
                        first=first,
                        last=last,
                        seconds=sum(block.seconds for block in devices[device].blocks[first:last]),
                    )
                    for device, (first, last) in zip(order, itertools.pairwise(bounds), strict=True)
                ]
                if all(
                    need(devices[stage.device], stage.first, stage.last, in_flight) <= devices[stage.device].room
                    for stage in stages
                ):
                    best = min(best, step_seconds(stages, micro_batches))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_it_is_as_good_as_the_best_of_all_cuts(seed: int) -> None:
    random_ = random.Random(seed)
    devices = _devices(random_, random_.randint(1, 6), random_.randint(1, 4))
    micro_batches = random_.choice([1, 4, 16])
    in_flight = min(micro_batches, min(len(devices), len(devices[0].blocks)) + 2)
    best = _every_cut(devices, in_flight, micro_batches)
    if math.isinf(best):
        with pytest.raises(DoesNotFit, match="GB"):
            cut(devices, micro_batches)
        return
    found = cut(devices, micro_batches)
    assert best * (1 - 1e-9) <= found.seconds <= best * BOUND_STEP
    assert found.bounds[0] == 0
    assert found.bounds[-1] == len(devices[0].blocks)
    assert list(found.bounds) == sorted(set(found.bounds))
    assert len({stage.device for stage in found.stages}) == len(found.stages)


def test_it_says_how_much_memory_is_missing() -> None:
    block = BlockCost(forward_s=1, backward_s=2, weights=10**9, trained=10**9, held=0, boundary=0)
    with pytest.raises(DoesNotFit, match=r"needs 16.00 GB in training, .* room for 6.00 GB together: 10.00 GB are"):
        cut([DeviceCosts(blocks=(block,) * 4, room=3e9)] * 2, 8)
