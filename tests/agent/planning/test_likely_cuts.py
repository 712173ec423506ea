"""The cuts that a bound finds, against all cuts that there are."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from remote_agent.planning.blocks import BlockCost, DeviceBlocks, need, wire_bytes
from remote_agent.planning.likely_cuts import BOUND_STEP, LikelyCuts, Shape
from remote_agent.planning.survey import Host


@dataclass(frozen=True)
class Case:
    devices: tuple[DeviceBlocks, ...]
    hosts: dict[str, Host]
    codec: str
    in_flight: int
    micro_batches: int

    @property
    def cuts(self) -> LikelyCuts:
        return LikelyCuts(self.devices, self.hosts, [each.host for each in self.devices], self.codec, self.in_flight)


def case(seed: int) -> Case:
    random_ = random.Random(seed)
    count, blocks = random_.randint(1, 3), random_.randint(1, 5)
    sizes = [random_.randint(1, 9) for _ in range(blocks)]
    numbers = [random_.choice([0, 1, 5, 50]) for _ in range(blocks)]
    hosts = {
        f"h{number}": Host(
            name=f"h{number}",
            devices=(),
            up=random_.choice([0.0, 40.0]),
            down=random_.choice([0.0, 10.0]),
            both=random_.choice([0.0, 0.0, 30.0]),
            computer=random_.choice(["", "x"]),
        )
        for number in range(count)
    }
    devices = tuple(
        DeviceBlocks(
            blocks=tuple(
                BlockCost(
                    forward_s=size / speed,
                    backward_s=2 * size / speed,
                    weights=10 * size,
                    trained=size,
                    held=2,
                    boundary=4 * amount,
                    numbers=amount,
                )
                for size, amount in zip(sizes, numbers, strict=True)
            ),
            room=random_.choice([math.inf, math.inf, 20 * sum(sizes) / count, 13 * max(sizes) + 204.0]),
            host=name,
        )
        for name, speed in zip(hosts, (random_.choice([1.0, 2.0, 5.0]) for _ in range(count)), strict=True)
    )
    return Case(devices, hosts, random_.choice(["fp32", "bf16"]), random_.choice([1, 2]), random_.choice([1, 4, 9]))


def measured(of: Case, shape: Shape) -> tuple[float, float]:
    """Seconds to fill the pipeline, and of its longest stage; infinite: it does not fit."""
    computers = {host.computer or name for name, host in of.hosts.items()}
    fill = longest = 0.0
    for place, (number, (first, last)) in enumerate(zip(shape[0], itertools.pairwise(shape[1]), strict=True)):
        device = of.devices[number]
        host = of.hosts[device.host]
        rate = host.both / 2 if host.both else min(host.up or math.inf, host.down or math.inf)
        rate = rate if len(computers) > 1 else math.inf
        seconds = sum(block.forward_s + block.backward_s for block in device.blocks[first:last])
        comes = wire_bytes(device.blocks[first], of.codec) / rate if place else 0.0
        goes = wire_bytes(device.blocks[last], of.codec) / rate if place < len(shape[0]) - 1 else 0.0
        if need(device, first, last, of.in_flight) > device.room:
            return math.inf, math.inf
        fill += seconds + 2 * comes  # activations come, and gradients go back
        longest = max(longest, seconds, comes + goes)
    return fill, longest


def every(of: Case) -> Iterator[Shape]:
    blocks = len(of.devices[0].blocks)
    for count in range(1, min(len(of.devices), blocks) + 1):
        for order in itertools.permutations(range(len(of.devices)), count):
            for inner in itertools.combinations(range(1, blocks), count - 1):
                yield order, (0, *inner, blocks)


@pytest.mark.parametrize("seed", range(150))
def test_for_each_bound_on_the_longest_stage_the_cuts_that_fill_soonest_are_found(seed: int) -> None:
    of = case(seed)
    known = [(measured(of, shape), len(shape[0])) for shape in every(of)]
    fitting = [(fill, longest, count) for (fill, longest), count in known if math.isfinite(fill)]
    found = list(of.cuts.shapes(of.micro_batches))
    assert of.cuts.is_tight == any(
        need(device, 0, len(device.blocks), of.in_flight) > device.room for device in of.devices
    )
    if not fitting:
        assert found == []
        return
    bound = least = min(longest for _, longest, _ in fitting)
    best = math.inf
    while found:
        expected = dict[int, float]()  # by the number of stages
        for fill, longest, count in fitting:
            if longest <= bound * (1 + 1e-9):
                expected[count] = min(fill, expected.get(count, math.inf))
        now, found = found[: len(expected)], found[len(expected) :]
        figures = {len(shape[0]): measured(of, shape) for shape in now}
        assert {count: fill for count, (fill, _) in figures.items()} == pytest.approx(expected)
        assert all(longest <= bound * (1 + 1e-6) for _, longest in figures.values())
        steps = (fill + (of.micro_batches - 1) * longest for fill, longest in figures.values())
        best = min(best, *steps)
        bound *= BOUND_STEP
    # It ends where each longer bound is one that a step takes longer with, and no earlier.
    assert of.micro_batches * bound / BOUND_STEP >= best * (1 - 1e-9)
    assert bound <= BOUND_STEP * least or of.micro_batches * bound / BOUND_STEP**2 < best * (1 + 1e-9)
    shortest = min(fill + (of.micro_batches - 1) * longest for fill, longest, _ in fitting)
    assert best <= BOUND_STEP * shortest
