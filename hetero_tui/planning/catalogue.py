"""Devices and links that nobody measured here, by published figures: for "what if", and marked as estimates. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from remote_agent.planning.survey import Device

_SPECS = "https://www.techpowerup.com/gpu-specs"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A device: single-precision TFLOPS and memory as its maker or a reference work gives them, and where."""

    tflops: float
    memory_gb: float
    source: str


DEVICES = {
    "rtx4090": Published(tflops=82.6, memory_gb=24, source=f"{_SPECS}: GeForce RTX 4090"),
    "rtx4070": Published(tflops=29.1, memory_gb=12, source=f"{_SPECS}: GeForce RTX 4070"),
    "rtx3090": Published(tflops=35.6, memory_gb=24, source=f"{_SPECS}: GeForce RTX 3090"),
    "rtx3060": Published(tflops=12.7, memory_gb=12, source=f"{_SPECS}: GeForce RTX 3060 12 GB"),
    "gtx1080ti": Published(tflops=11.3, memory_gb=11, source=f"{_SPECS}: GeForce GTX 1080 Ti"),
    "titanx": Published(tflops=6.7, memory_gb=12, source=f"{_SPECS}: GeForce GTX TITAN X"),
    "t4": Published(tflops=8.1, memory_gb=16, source="https://www.nvidia.com/en-us/data-center/tesla-t4/"),
    "a100": Published(tflops=19.5, memory_gb=80, source="https://www.nvidia.com/en-us/data-center/a100/"),
    "h100": Published(tflops=67.0, memory_gb=80, source="https://www.nvidia.com/en-us/data-center/h100/"),
    "m1": Published(tflops=2.6, memory_gb=8, source="https://www.apple.com/newsroom/2020/11/apple-unleashes-m1/"),
}

OVERHEAD_S = 0.005
"""Assumed of each slice on a device that was not measured."""

USED = 0.35
"""Part of the published TFLOPS that training reaches, where nothing measured says more."""

WIFI_BYTES = 25e6
"""Bytes/s of a good Wi-Fi, both directions and all hosts on it together; assumed."""

PAYLOAD = 0.94
"""Of a wire's bits that are left for data: Ethernet's, IP's and TCP's own bytes are the rest."""

_WIRE = re.compile(r"(\d+(?:\.\d+)?)\s*(m|g)bit", re.IGNORECASE)


def link_rate(text: str) -> float | None:
    """Bytes/s of ``1gbit``, ``100mbit``, ``2.5gbit``; None: it is no such link."""
    found = _WIRE.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        return None
    return PAYLOAD * float(found[1]) * (1e9 if found[2].lower() == "g" else 1e6) / 8


def known_as(product: str) -> Published | None:
    """The device of the catalogue whose name a product's name ("NVIDIA GeForce RTX 4070") contains."""
    plain = re.sub(r"[^a-z0-9]", "", product.lower())
    matches = [name for name in DEVICES if name in plain]
    return DEVICES[max(matches, key=len)] if matches else None


def estimate(name: str, device: str, anchor: Device) -> Device:
    """A device of the catalogue, as fast as the published figures say beside one that was measured.

    Args:
        name: of the worker.
        device: a key of :data:`DEVICES`.
        anchor: the measured one. If the catalogue does not know it, it is taken for a processor of half a TFLOPS.
    """
    published, beside = DEVICES[device], known_as(anchor.product)
    ratio = published.tflops / (beside.tflops if beside is not None else 0.5 / USED)
    against = f"{anchor.name} as measured" + ("" if beside is not None else ", taken for 0.5 TFLOPS: a rough guess")
    return Device(
        name=name,
        speed=anchor.speed * ratio,
        overhead_s=min(OVERHEAD_S, anchor.overhead_s) if anchor.overhead_s else OVERHEAD_S,
        step_s=anchor.step_s / ratio,
        memory=int(published.memory_gb * 1e9),
        product=device,
        estimate=f"{published.tflops:g} TFLOPS fp32, {published.source}, against {against}",
    )
