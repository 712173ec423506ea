"""Assigns a model's blocks to devices, with their order and the number of micro-batches in flight. Pure.

What a step takes is simulated (:mod:`~remote_agent.planning.stage_flow`), with the links between the stages and the
codec of what goes over them. All cuts are too many to simulate: some are found by a bound
(:mod:`~remote_agent.planning.likely_cuts`), and the best of these is changed in small ways for as long as a simulated
step becomes shorter.

A device has room for a stage's weights, gradients and what the optimizer remembers, and for the activations of the
micro-batches that the stage may hold: as many as the simulated step held there, and one more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from remote_agent.planning.blocks import DeviceBlocks, need, wire_bytes
from remote_agent.planning.channels import Network
from remote_agent.planning.likely_cuts import LikelyCuts, Shape, spans
from remote_agent.planning.sites import DoesNotFit
from remote_agent.planning.stage_flow import StageLoad, flow
from remote_agent.planning.survey import Host, Survey

AHEAD = 2
"""Micro-batches in flight beyond one for each stage, so that neither links nor a moment's delay are waited for."""

WORTH = 0.99
"""More micro-batches in flight, and a codec that loses something, are to make a step shorter by a hundredth."""

MAX_BEGUN = 3
"""Numbers of stages whose best cut is changed for a better one."""

MAX_CHANGES = 300
"""Most cuts that are simulated around each of these."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """What lies between the devices.

    Attributes:
        hosts: with what was measured of their links; a host that is not among them is held up by nothing.
        media: what several of them share: bytes/s, by name.
        call_s: one call of an actor, which a step waits for.
    """

    hosts: tuple[Host, ...] = ()
    media: Mapping[str, float] = field(default_factory=dict)
    call_s: float = 0.0

    @classmethod
    def of(cls, survey: Survey | None) -> Links:
        """As it was measured; None: it was not."""
        return cls() if survey is None else cls(hosts=survey.hosts, media=survey.media, call_s=survey.call_s)


@dataclass(frozen=True, kw_only=True)
class StageCut:
    """Blocks ``first`` to before ``last`` on device number ``device``.

    Attributes:
        seconds: for one micro-batch, forward and backward.
        in_flight: micro-batches whose activations it may hold.
    """

    device: int
    first: int
    last: int
    seconds: float
    in_flight: int


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The stages in their order, the predicted seconds of a step, and how what they exchange is written."""

    stages: tuple[StageCut, ...]
    seconds: float
    codec: str = "fp32"

    @property
    def in_flight(self) -> int:
        """Micro-batches on their way at once."""
        return self.stages[0].in_flight

    @property
    def bounds(self) -> tuple[int, ...]:
        """The first block of each stage, and the number of blocks."""
        return (*(stage.first for stage in self.stages), self.stages[-1].last)


def least_seconds(seconds: Sequence[float], micro_batches: int) -> float:
    """The least that a step can take, whatever the links and the order of work.

    A stage computes all micro-batches; the first comes once the stages before it have had it, and the last one's
    gradient goes through these afterwards.

    Args:
        seconds: of each stage for one micro-batch, forward and backward.
    """
    return max(sum(seconds[:stage]) + micro_batches * each for stage, each in enumerate(seconds))


def cut(
    devices: Sequence[DeviceBlocks],
    micro_batches: int,
    links: Links | None = None,
    *,
    codecs: Sequence[str] = ("fp32",),
    in_flight: int = 0,
) -> Cut:
    """The stages.

    Args:
        devices: what each measured of the same blocks.
        links: between them; None: nothing is held up there.
        codecs: that may be taken, the first one rather than the others.
        in_flight: as it was set; 0: as many as pay.

    Raises:
        DoesNotFit: there is none.
    """
    found: Cut | None = None
    for codec in codecs:
        other = _Search(devices, micro_batches, links or Links(), codec, in_flight).best()
        if found is None or (other is not None and other.seconds < WORTH * found.seconds):
            found = other
    if found is None:
        raise DoesNotFit(_missing(devices, in_flight or 1))
    return found


class _Search:
    """One codec's best cut."""

    def __init__(
        self, devices: Sequence[DeviceBlocks], micro_batches: int, links: Links, codec: str, in_flight: int
    ) -> None:
        self._devices, self._micro_batches, self._codec, self._wanted = devices, micro_batches, codec, in_flight
        self._blocks = len(devices[0].blocks)
        known = {host.name: host for host in links.hosts}
        names = dict.fromkeys(device.host or f"device {number}" for number, device in enumerate(devices))
        self._names = [device.host or f"device {number}" for number, device in enumerate(devices)]
        self._hosts = {name: known.get(name, Host(name=name, devices=())) for name in names}
        self._media, self._call_s = links.media, links.call_s
        self._latency = {name: host.latency_s for name, host in self._hosts.items()}

    def best(self) -> Cut | None:
        """None: nothing fits."""
        found: dict[int, Cut] = {}  # the best of so many stages
        for shape in dict.fromkeys(self._likely()):
            flown = self._flown(shape)
            if flown is not None:
                count = len(flown.stages)
                found[count] = min(found.get(count, flown), flown, key=_seconds)
        first = sorted(found.values(), key=_seconds)[:MAX_BEGUN]
        return min(map(self._improved, first), key=_seconds, default=None)

    # --- Cuts that are likely to be good -----------------------------------------------------------------------------

    def _likely(self) -> Iterator[Shape]:
        most = self._most(min(len(self._devices), self._blocks))
        usual = LikelyCuts(self._devices, self._hosts, self._names, self._codec, most)
        yield from usual.shapes(self._micro_batches)
        if usual.is_tight:
            least = LikelyCuts(self._devices, self._hosts, self._names, self._codec, 1)
            yield from least.shapes(self._micro_batches)

    def _most(self, stages: int) -> int:
        return min(self._micro_batches, self._wanted or stages + AHEAD)

    # --- What a cut is like ------------------------------------------------------------------------------------------

    def _flown(self, shape: Shape) -> Cut | None:
        """The cut with as many micro-batches in flight as pay and fit; None: it does not fit."""
        stages = len(shape[0])
        usual = self._most(stages)
        best = self.simulated(shape, usual)
        if self._wanted:
            return best
        for fewer in range(usual - 1, 0, -1):
            if best is not None:
                break
            best = self.simulated(shape, fewer)
        others = () if stages == 1 else (stages, usual + 1, usual + 2, 2 * usual, 4 * usual)
        for flying in dict.fromkeys(min(self._micro_batches, each) for each in others):
            other = self.simulated(shape, flying)
            if other is not None and best is not None and other.seconds < WORTH * best.seconds:
                best = other
        return best

    def simulated(self, shape: Shape, in_flight: int) -> Cut | None:
        """The cut; None: it does not fit."""
        order, bounds = shape
        loads = [self._load(device, *span, in_flight) for device, span in zip(order, spans(bounds), strict=True)]
        loads = self._with_tied(loads, bounds)
        network = Network(tuple(self._hosts.values()), self._media)
        flown = flow(loads, self._micro_batches, network, self._latency)
        stages = []
        for load, device, (first, last), held in zip(loads, order, spans(bounds), flown.held, strict=True):
            most = 1 if last == self._blocks else min(in_flight, held + 1)
            most = in_flight if first == 0 else most
            if need(self._devices[device], first, last, most) > self._devices[device].room:
                return None
            seconds = load.forward_s + load.backward_s
            stages.append(StageCut(device=device, first=first, last=last, seconds=seconds, in_flight=most))
        seconds = flown.seconds + self._call_s + self._tied_s(order, bounds)
        return Cut(stages=tuple(stages), seconds=seconds, codec=self._codec)

    def _load(self, device: int, first: int, last: int, in_flight: int) -> StageLoad:
        costs = self._devices[device]
        blocks = costs.blocks[first:last]
        return StageLoad(
            host=self._names[device],
            forward_s=sum(block.forward_s for block in blocks),
            backward_s=sum(block.backward_s for block in blocks),
            given=wire_bytes(blocks[0], self._codec) if first else 0.0,
            in_flight=in_flight,
            before_s=costs.update_s * sum(block.trained for block in blocks),
        )

    def _with_tied(self, loads: Sequence[StageLoad], bounds: Sequence[int]) -> list[StageLoad]:
        """With the new values of tied weights, which stages wait for that do not step them."""
        found = list(loads)
        for size, holders in self._shared(bounds):
            owner = loads[holders[0]]
            for other in holders[1:]:
                there = owner.before_s + self._moved_s(owner.host, found[other].host, size)
                found[other] = replace(found[other], before_s=max(found[other].before_s, there))
        return found

    def _tied_s(self, order: Sequence[int], bounds: Sequence[int]) -> float:
        """Seconds until the gradients of tied weights are where these are stepped."""
        return sum(
            self._moved_s(self._names[order[other]], self._names[order[holders[0]]], size)
            for size, holders in self._shared(bounds)
            for other in holders[1:]
        )

    def _shared(self, bounds: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Bytes of each weight that several stages use, and these."""
        for tied in self._devices[0].tied:
            holders = tuple(
                stage
                for stage, (first, last) in enumerate(spans(bounds))
                if any(first <= block < last for block in tied.blocks)
            )
            if len(holders) > 1:
                yield tied.size, holders

    def _moved_s(self, sender: str, receiver: str, size: float) -> float:
        if sender == receiver:
            return 0.0
        return size / min(self._hosts[sender].rate, self._hosts[receiver].rate)

    # --- Small changes -----------------------------------------------------------------------------------------------

    def _improved(self, best: Cut) -> Cut:
        """The best cut that small changes lead to."""
        tried, seen = 0, {_shape_of(best)}
        while True:
            for shape in self._changed(_shape_of(best)):
                if shape in seen:
                    continue
                seen.add(shape)
                tried += 1
                other = self._flown(shape)
                if other is not None and other.seconds < best.seconds * (1 - 1e-9):
                    best = other
                    break
                if tried >= MAX_CHANGES:
                    return best
            else:
                return best

    def _changed(self, shape: Shape) -> Iterator[Shape]:
        """Neighbours of a cut: a block given to another, two devices swapped, one left out, taken in, or replaced."""
        order, bounds = shape
        unused = [device for device in range(len(self._devices)) if device not in order]
        for one, other in itertools.combinations(range(len(order)), 2):
            for by in (-1, 1):  # all between the two are moved on
                moved = tuple(each + by * (one < place <= other) for place, each in enumerate(bounds))
                if all(first < last for first, last in spans(moved)):
                    yield order, moved
        for one, other in itertools.combinations(range(len(order)), 2):
            swapped = list(order)
            swapped[one], swapped[other] = order[other], order[one]
            yield tuple(swapped), bounds
        for place in range(len(order)):
            for device in unused:
                yield (*order[:place], device, *order[place + 1 :]), bounds
            left = (*order[:place], *order[place + 1 :])
            if left:
                yield left, (*bounds[: max(1, place)], *bounds[max(1, place) + 1 :])
                if 0 < place < len(order) - 1:
                    yield left, (*bounds[: place + 1], *bounds[place + 2 :])
            if bounds[place + 1] - bounds[place] > 1:
                for device in unused:
                    before = (*order[:place], device, *order[place:])
                    yield before, (*bounds[: place + 1], bounds[place] + 1, *bounds[place + 1 :])
                    after = (*order[: place + 1], device, *order[place + 1 :])
                    yield after, (*bounds[: place + 1], bounds[place + 1] - 1, *bounds[place + 1 :])


def _seconds(found: Cut) -> float:
    return found.seconds


def _shape_of(found: Cut) -> Shape:
    return tuple(stage.device for stage in found.stages), found.bounds


def _missing(devices: Sequence[DeviceBlocks], in_flight: int) -> str:
    blocks = len(devices[0].blocks)
    needed = need(devices[0], 0, blocks, in_flight)
    room = sum(device.room for device in devices)
    largest = max(need(devices[0], block, block + 1, in_flight) for block in range(blocks))
    said = f"the model needs {needed / 1e9:.2f} GB in training"
    if needed > room:
        missing = f"{(needed - room) / 1e9:.2f} GB are missing"
        return f"{said}, and the devices have room for {room / 1e9:.2f} GB together: {missing}"
    return f"{said}, its largest block {largest / 1e9:.2f} GB, and no cut fits into the devices' {room / 1e9:.2f} GB"
