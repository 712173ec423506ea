"""The cut of a model among devices, against all cuts that there are."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from remote_agent.training.coordinator.plan.cuts import (
    BOUND_STEP,
    DoesNotFit,
    StageCut,
    cut,
    in_flight_of,
    need,
    step_seconds,
    told,
)
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


def test_a_step_fills_the_pipeline_once_and_then_waits_for_its_slowest_stage() -> None:
    stages = [StageCut(device=n, first=n, last=n + 1, seconds=seconds) for n, seconds in enumerate((1.0, 2.0, 1.5))]
    assert step_seconds(stages, 1) == 4.5
    assert step_seconds(stages, 5) == 4.5 + 4 * 2.0


def test_a_stage_takes_weights_what_training_adds_and_activations_of_what_is_in_flight() -> None:
    blocks = tuple(
        BlockCost(forward_s=1, backward_s=1, weights=weights, trained=trained, held=held, boundary=boundary)
        for weights, trained, held, boundary in ((100, 10, 7, 1), (200, 20, 3, 2), (400, 0, 0, 4))
    )
    costs = DeviceCosts(blocks=blocks, room=math.inf)
    assert need(costs, 0, 1, in_flight=2) == 100 + 3 * 10 + 2 * (7 + 1)
    assert need(costs, 1, 3, in_flight=5) == 200 + 3 * 20 + 5 * (3 + 2) + 400 + 5 * 4
    assert need(costs, 1, 1, in_flight=5) == 0


@pytest.mark.parametrize(
    ("stages", "micro_batches", "wanted", "flying"),
    [(3, 16, 0, 5), (3, 4, 0, 4), (3, 16, 2, 2), (3, 4, 9, 4), (1, 1, 0, 1)],
)
def test_as_many_micro_batches_are_in_flight_as_pay_unless_it_is_set(
    stages: int, micro_batches: int, wanted: int, flying: int
) -> None:
    assert in_flight_of(stages, micro_batches, wanted) == flying


def _alike(count: int, room: float, blocks: int = 4) -> list[DeviceCosts]:
    block = BlockCost(forward_s=1, backward_s=2, weights=10, trained=10, held=0, boundary=0)
    return [DeviceCosts(blocks=(block,) * blocks, room=room)] * count


def test_a_stage_may_fill_its_device_to_the_last_byte_and_no_further() -> None:
    assert cut(_alike(2, 80.0), 4).bounds == (0, 2, 4)
    with pytest.raises(DoesNotFit, match=r"its largest block 0.00 GB, and no cut fits"):
        cut([*_alike(1, 120.0), *_alike(1, 79.0 - 40.0), *_alike(1, 1.0)], 4)


def test_the_plan_names_each_stage_with_its_worker_time_and_memory() -> None:
    devices = _alike(2, 1000.0)
    found = cut(devices, 8)
    stages = told(found, devices, ["a", "b"])
    assert [(stage.worker, stage.first, stage.last, stage.seconds, stage.memory) for stage in stages] == [
        ("a", 0, 2, 6.0, 80),
        ("b", 2, 4, 6.0, 80),
    ]
    with pytest.raises(ValueError, match="zip"):
        told(found, devices, ["a"])


def test_it_says_which_block_is_too_large_where_all_would_fit_together() -> None:
    small = BlockCost(forward_s=1, backward_s=2, weights=10**9, trained=0, held=10**8, boundary=0)
    large = BlockCost(forward_s=1, backward_s=2, weights=4 * 10**9, trained=0, held=10**8, boundary=0)
    with pytest.raises(DoesNotFit, match=r"needs 7.20 GB in training, its largest block 4.40 GB, .* devices' 8.00 GB"):
        cut([DeviceCosts(blocks=(small, large, small), room=4e9)] * 2, 8)
    block = BlockCost(forward_s=1, backward_s=2, weights=8 * 10**9, trained=0, held=0, boundary=0)
    with pytest.raises(DoesNotFit, match=r"needs 8.00 GB .* no cut fits into the devices' 8.00 GB"):
        cut([DeviceCosts(blocks=(block,), room=4e9)] * 2, 8)
