"""Fleets for the planner's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remote_agent.planning.survey import Device, Host, Survey, Work

LINK_1G, LINK_100M, LINK_10M = 118e6, 11.8e6, 1.18e6
BACKWARD = tuple(1 - 0.65 * (part + 1) / 16 for part in range(16))


def host(name: str, speed: float, rate: float = LINK_1G, *, devices: int = 1, **more: Any) -> Host:
    device = {key: more.pop(key) for key in ("overhead_s", "max_batch", "step_s") if key in more}
    made = tuple(
        Device(name=f"{name}/{number}", speed=speed, **device, memory=more.get("device_memory"))
        for number in range(devices)
    )
    more.pop("device_memory", None)
    return Host(name=name, devices=made, up=rate, down=rate, **more)


def survey(hosts: Sequence[Host], parameters: int = 1_000_000, batch: int = 48, **work: Any) -> Survey:
    return Survey(job="text", work=Work(parameters=parameters, batch=batch, **work), hosts=tuple(hosts), call_s=0.0)
