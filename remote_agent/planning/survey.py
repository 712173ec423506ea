"""Defines the measurements of a fleet and a job from which a prediction is made, as plain numbers.

It is what the coordinator measures, what is kept between two plans, and what a fleet file or a what-if describes.
Units: seconds, bytes, samples, numbers (of the flat buffer of trained parameters).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass, field

from remote_agent.planning.blocks import BYTES_A_NUMBER, DeviceBlocks
from remote_agent.planning.device_profile import DeviceProfile

MAX_AGE_DAYS = 14
"""What was measured longer ago is measured anew: links, drivers and other work on a host change unseen."""

DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device as the job's own model runs on it.

    Attributes:
        speed: samples per second of forward and backward, > 0.
        overhead_s: seconds that a slice costs whatever its size.
        step_s: of the job's optimizer over all parameters, on this device.
        max_batch: most samples of a slice; None: any.
        memory: bytes that training may use; None: not known.
        product: what it is, in words.
        estimate: where the figures come from that were not measured here; empty: they were.
        blocks: what each block of the model takes there, where it is to be cut between them; None: it is not.
    """

    name: str
    speed: float
    overhead_s: float = 0.0
    step_s: float = 0.0
    max_batch: int | None = None
    memory: int | None = None
    estimate: str = ""
    product: str = ""
    blocks: DeviceBlocks | None = None

    @property
    def profile(self) -> DeviceProfile:
        """Its time for a slice."""
        return DeviceProfile(self.speed, self.overhead_s, self.max_batch)


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host as it takes part.

    Attributes:
        devices: that train; none: it can hold a shard only.
        up: bytes/s that its link sends while it receives; 0: not known.
        down: bytes/s that its link receives while it sends; 0: not known.
        both: bytes/s of both directions together where these share a channel (half duplex); 0: they do not.
        medium: what it shares with others, such as one Wi-Fi; see :attr:`Survey.media`.
        latency_s: of a small message there and back.
        update_s: of the optimizer's step for one number, on its processor.
        turn_s: of a small chunk there and back between two threads of the host, over TCP.
        touch_s: of each number of a chunk beside that, on its processor: summed, and copied.
        memory: bytes that are free for a shard; None: not known.
        reachable: all others can connect to it; if not, it holds no shard.
        computer: hosts of one computer have no network between them; empty: not known.
    """

    name: str
    devices: tuple[Device, ...]
    up: float = 0.0
    down: float = 0.0
    both: float = 0.0
    medium: str = ""
    latency_s: float = 0.0
    update_s: float = 0.0
    turn_s: float = 0.0
    touch_s: float = 0.0
    memory: int | None = None
    reachable: bool = True
    computer: str = ""

    @property
    def rate(self) -> float:
        """Bytes/s that its link carries each way at the same time; infinite: not known."""
        return self.both / 2 or min(self.up or math.inf, self.down or math.inf)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step of the job asks for.

    Attributes:
        parameters: trained numbers.
        batch: samples of a step.
        least: samples of a slice that is not empty.
        ready: for equal parts of the buffer, in its order: which part of a slice's time has passed when their gradients
            are there. Empty: all come at its end.
        streamable: parameter servers can hold the model; else it is trained with ``allreduce``.
        clipped: the norm over all gradients is known before any weights are new.
        unit: samples that stay together; 0: any.
        encrypted: what goes from host to host has to be, which ``allreduce`` can't do.
        micro_batch: samples that pass a cut model together; 0: it is not cut.
    """

    parameters: int
    batch: int
    least: int = 1
    ready: tuple[float, ...] = ()
    streamable: bool = True
    clipped: bool = False
    unit: int = 0
    encrypted: bool = False
    micro_batch: int = 0


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A fleet and a job.

    Attributes:
        hosts: the first one is where the parameter server goes by default.
        call_s: of one call of an actor.
        codec_s: seconds to write and read one number, by codec.
        media: bytes/s of what several hosts share, by name.
        ratios: measured over predicted seconds of each term, by ``ways.ratio_name``, as steps of this job showed them.
        other_s: seconds of a step that no term accounts for, as steps of this job showed them.
        time: when it was measured, since the epoch; 0: it was not.
        notes: what is to be said of the job on this fleet, such as which devices have no room for the model.
    """

    job: str
    work: Work
    hosts: tuple[Host, ...]
    call_s: float = 0.002
    codec_s: dict[str, float] = field(default_factory=dict)
    media: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    other_s: float = 0.0
    time: float = 0.0
    notes: tuple[str, ...] = ()

    def of(self, names: Collection[str]) -> Survey:
        """The same with these hosts only."""
        return dataclasses.replace(self, hosts=tuple(host for host in self.hosts if host.name in names))

    def without(self, names: Collection[str]) -> Survey:
        """The same without the devices of these names. A host stays without its devices: it may hold a shard."""
        hosts = tuple(
            dataclasses.replace(host, devices=tuple(each for each in host.devices if each.name not in names))
            for host in self.hosts
        )
        return dataclasses.replace(self, hosts=hosts)

    def is_old(self, now: float) -> bool:
        """Whether it was measured too long before ``now`` (seconds since the epoch), or after it by another clock."""
        return not -DAY_S < now - self.time < MAX_AGE_DAYS * DAY_S

    @property
    def names(self) -> tuple[str, ...]:
        """Of all hosts."""
        return tuple(host.name for host in self.hosts)


def wire_bytes(codec: str, numbers: int) -> int:
    """Bytes of so many numbers on the wire."""
    return int(BYTES_A_NUMBER[codec] * numbers)
