"""Cuts of a model that may be good, by a bound on what a step takes; simulating all would take too long. Pure.

A step of m micro-batches takes about the sum of the stages' times, to fill the pipeline, and (m - 1) times the longest
one's, where a stage takes as long as its device computes or as its host's link carries what the stage exchanges,
whichever is longer. For a bound on the longest, the cut with the least sum is found over all sets of devices and all
orders of them (dynamic programming over how many blocks the devices of a set have together); bounds are tried from the
smallest that any cut reaches upwards, in steps of :data:`BOUND_STEP`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from remote_agent.planning.blocks import DeviceBlocks, need, wire_bytes
from remote_agent.planning.survey import Host

BOUND_STEP = 1.05
MAX_BOUNDS = 60

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Numbers of devices in the stages' order; the first block of each stage, and the number of blocks."""


def spans(bounds: Sequence[int]) -> list[tuple[int, int]]:
    """The first block of each stage, and the first one after it."""
    return list(itertools.pairwise(bounds))


@dataclass(frozen=True)
class _Stage:
    """Seconds that one micro-batch takes to come, and to pass; and what limits how often one does."""

    fill: float
    load: float


_NONE = _Stage(math.inf, math.inf)


class LikelyCuts:
    """See the module.

    Args:
        devices: what each measured.
        hosts: by name, with their links.
        names: the host of each device.
        in_flight: micro-batches whose activations each stage has room for.

    Attributes:
        is_tight: some device has no room for all blocks.
    """

    def __init__(
        self,
        devices: Sequence[DeviceBlocks],
        hosts: Mapping[str, Host],
        names: Sequence[str],
        codec: str,
        in_flight: int,
    ) -> None:
        self._blocks = len(devices[0].blocks)
        apart = len({hosts[name].computer or name for name in names}) > 1
        self._stages = [
            _stages(device, codec, hosts[name].rate if apart else math.inf, in_flight)
            for device, name in zip(devices, names, strict=True)
        ]
        self.is_tight = any(math.isinf(own[0][self._blocks].fill) for own in self._stages)

    def shapes(self, micro_batches: int) -> Iterator[Shape]:
        """Cuts, by their longest stage; each may come several times."""
        bound, best = self._least_bound(), math.inf
        if math.isinf(bound):
            return
        for _ in range(MAX_BOUNDS):
            for seconds, longest, shape in self._within(bound * (1 + 1e-9)):
                yield shape
                best = min(best, seconds + (micro_batches - 1) * longest)
            if micro_batches * bound >= best:
                return  # whatever has a longer stage takes longer
            bound *= BOUND_STEP

    def _least_bound(self) -> float:
        """The smallest longest stage of any cut; infinite: there is no cut."""
        best = [[math.inf] * (self._blocks + 1) for _ in range(1 << len(self._stages))]
        best[0][0] = 0.0
        for used, done, device in self._states(best):
            row, longest, own = best[used | 1 << device], best[used][done], self._stages[device][done]
            for last in range(done + 1, self._blocks + 1):
                row[last] = min(row[last], max(longest, own[last].load))
        return min(row[self._blocks] for row in best)

    def _within(self, bound: float) -> Iterator[tuple[float, float, Shape]]:
        """The cut with the least sum whose stages take no longer than ``bound``, for each number of stages.

        Yields:
            Its sum, its longest stage, and it.
        """
        best = [[math.inf] * (self._blocks + 1) for _ in range(1 << len(self._stages))]
        came: dict[tuple[int, int], tuple[int, int, int]] = {}
        best[0][0] = 0.0
        for used, done, device in self._states(best):
            after, so_far, own = used | 1 << device, best[used][done], self._stages[device][done]
            for last in range(done + 1, self._blocks + 1):
                if own[last].load > bound:
                    if math.isinf(own[last].fill):
                        break
                    continue  # what it hands on may be less after the next block
                if so_far + own[last].fill < best[after][last]:
                    best[after][last] = so_far + own[last].fill
                    came[after, last] = (used, done, device)
        sets: dict[int, int] = {}  # the best one of so many devices
        for used, row in enumerate(best):
            known = sets.get(used.bit_count())
            if math.isfinite(row[self._blocks]) and (known is None or row[self._blocks] < best[known][self._blocks]):
                sets[used.bit_count()] = used
        for used in sets.values():
            shape = self._shape(used, came)
            loads = (
                self._stages[device][first][last].load
                for device, (first, last) in zip(shape[0], spans(shape[1]), strict=True)
            )
            yield best[used][self._blocks], max(loads), shape

    def _shape(self, used: int, came: Mapping[tuple[int, int], tuple[int, int, int]]) -> Shape:
        """The cut among the devices ``used``, from the last stage to the first as each ``came`` about."""
        order: list[int] = []
        bounds = [self._blocks]
        while used:
            used, first, device = came[used, bounds[-1]]
            order.append(device)
            bounds.append(first)
        return tuple(reversed(order)), tuple(reversed(bounds))

    def _states(self, best: Sequence[Sequence[float]]) -> Iterator[tuple[int, int, int]]:
        """Sets of devices that have so many blocks together, and one more device."""
        for used in range(1 << len(self._stages)):
            for done in range(self._blocks):
                if math.isinf(best[used][done]):
                    continue
                for device in range(len(self._stages)):
                    if not used >> device & 1:
                        yield used, done, device


def _stages(costs: DeviceBlocks, codec: str, link: float, in_flight: int) -> list[list[_Stage]]:
    """Of blocks i to before j, by i and j."""
    blocks = len(costs.blocks)
    given = [wire_bytes(block, codec) / link if number else 0.0 for number, block in enumerate(costs.blocks)]
    given.append(0.0)
    result = [[_NONE] * (blocks + 1) for _ in range(blocks + 1)]
    for first in range(blocks):
        seconds = 0.0
        for last in range(first + 1, blocks + 1):
            seconds += costs.blocks[last - 1].seconds
            if need(costs, first, last, in_flight) > costs.room:
                break
            result[first][last] = _Stage(seconds + 2 * given[first], max(seconds, given[first] + given[last]))
    return result
