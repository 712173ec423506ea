"""The kinds of accelerators, as one table: what the probe, torch, torch's builds and people call each of them.

Laptop and agent share it, so it needs nothing but the standard library. How a kind is found is in
:mod:`remote_agent.probe`, which runs alone; what differs while it computes is in ``training/worker/device/backend.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """A kind of accelerator.

    Attributes:
        name: as the probe finds it.
        torch: what torch calls its devices.
        vendor: who makes them.
        title: for people.
        build: what the names of torch's builds for it begin with.
        installed: the build that an environment gets; empty: ``hetero_tui.planning.builds`` has a rule of its own.
        numbered: a host may have several, which torch numbers: ``cuda:0``.
        sampler: the module that reads its use; empty: there is none.
    """

    name: str
    torch: str
    vendor: str
    title: str
    build: str
    installed: str = ""
    numbered: bool = True
    sampler: str = ""

    def device(self, index: int) -> str:
        """Torch's name of one of them."""
        return f"{self.torch}:{index}" if self.numbered else self.torch


KINDS: dict[str, DeviceKind] = {
    kind.name: kind
    for kind in (
        DeviceKind(
            name="cuda",
            torch="cuda",
            vendor="NVIDIA",
            title="CUDA",
            build="cu",
            sampler="remote_agent.sampling.nvidia",
        ),
        DeviceKind(  # its build: the newest that there is; the kernels come with the wheel, the driver is the machine's
            name="rocm",
            torch="cuda",
            vendor="AMD",
            title="ROCm",
            build="rocm",
            installed="rocm7.2",
            sampler="remote_agent.sampling.amd",
        ),
        DeviceKind(name="xpu", torch="xpu", vendor="Intel", title="XPU", build="xpu", installed="xpu"),
        DeviceKind(
            name="mps",
            torch="mps",
            vendor="Apple",
            title="MPS",
            build="mps",
            installed="mps",
            numbered=False,
            sampler="remote_agent.sampling.apple",
        ),
    )
}
"""All by the probe's name. In a host with several the first is meant, unless its torch is built for another."""

NUMBERED = tuple(dict.fromkeys(kind.torch for kind in KINDS.values() if kind.numbered))
"""Torch's names of devices of which a host may have several."""

TORCH_NAMES = tuple(dict.fromkeys(kind.torch for kind in KINDS.values()))
"""Torch's names, each once."""


def built_for(build: str | None) -> tuple[DeviceKind, ...]:
    """The kinds that a torch may compute on, by its build: one for each of torch's names.

    Of two that torch calls the same, that for which it is built, else the first.
    """
    chosen: dict[str, DeviceKind] = {}
    for kind in KINDS.values():
        if kind.torch not in chosen or (build or "").startswith(kind.build):
            chosen[kind.torch] = kind
    return tuple(chosen.values())
