"""Defines a device's measured costs beside forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class DeviceCosts:
    """What a step costs beside forward and backward.

    Attributes:
        step_s: of AdamW over all parameters, on the device.
        update_s: of the same for one number, on the host's processor.
        ready: for equal parts of the buffer, which part of a slice's time has passed when their gradients are there.
        codec_s: seconds to write and read one number, by codec.
        turn_s: from sending a small chunk to having the answer, through TCP and two threads of this host.
        touch_s: what each number of a chunk takes of the processor beside that: summed, and copied.
    """

    step_s: float = 0.0
    update_s: float = 0.0
    ready: tuple[float, ...] = ()
    codec_s: Mapping[str, float] = field(default_factory=dict)
    turn_s: float = 0.0
    touch_s: float = 0.0
