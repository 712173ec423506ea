"""Chooses the build of torch for a machine from its accelerators, their drivers and its system, with a reason. Pure.

Kernels in torch 2.12 to 2.14: cu126 has sm_50 to sm_90, cu130 has sm_75 and newer. CUDA 12 needs driver 525.60 or
newer (CUDA's minor version compatibility), CUDA 13 needs 580. A build without kernels for a card imports well and fails
at its first operation, so the driver alone does not decide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_tui.facts import Accelerator, HostFacts
from remote_agent.device_kinds import KINDS

_OLDEST_DRIVER = (525, 60)
_CUDA_13_DRIVER = (580,)
_OLDEST_CARD, _CUDA_13_CARD, _NEWEST_CUDA_12_CARD = (5, 0), (7, 5), (9, 0)


@dataclass(frozen=True, slots=True)
class Build:
    """One of torch's builds: ``cpu``, ``cu126``, ``cu130``, ``rocm7.2``, ``xpu`` or ``mps``, and why it was chosen.

    ``concern`` is what its user should know: an accelerator that this build can't use, and what would change that.
    """

    name: str
    why: str
    concern: str = ""

    @property
    def local_version(self) -> str:
        """What follows ``+`` in the version of PyTorch's own wheels; empty where PyPI's wheel is the one."""
        return "" if self.name == "mps" else self.name


def torch_build(facts: HostFacts, devices: Sequence[str] | None = None) -> Build:
    """The build for this machine; ``devices`` are those that the inventory lets train, if it names any."""
    accelerators = facts.usable_accelerators
    kinds = {accelerator.kind for accelerator in accelerators}
    if facts.os.system == "Darwin":
        return Build("mps", "macOS: the one build there is holds CPU and Apple GPU")
    if devices is not None and set(devices) == {"cpu"}:
        return Build("cpu", "the inventory lets its CPU alone train")
    kind = next((kind for name, kind in KINDS.items() if name in kinds), None)
    if kind is None:
        return Build("cpu", "no accelerator was found")
    if kind.installed:
        return Build(kind.installed, f"an {kind.vendor} GPU")
    return _for_nvidia([accelerator for accelerator in accelerators if accelerator.kind == kind.name])


def _for_nvidia(cards: Sequence[Accelerator]) -> Build:
    driver_text = next((card.driver for card in cards if card.driver), "")
    driver = version(driver_text)
    capable = [(version(card.capability or ""), card) for card in cards]
    known = [(capability, card) for capability, card in capable if capability]
    if driver and driver < _OLDEST_DRIVER:
        concern = f"driver {driver_text} is older than 525.60, which CUDA 12 needs: update it to use {_named(cards)}"
        return Build("cpu", f"driver {driver_text} is too old for any CUDA build of this torch", concern)
    old = [card for capability, card in known if capability < _CUDA_13_CARD]
    too_old = [card for capability, card in known if capability < _OLDEST_CARD]
    too_new = [card for capability, card in known if capability[:2] > _NEWEST_CUDA_12_CARD]
    if len(too_old) == len(cards):
        return Build("cpu", f"{_shown(too_old[0])} is older than any kernel of torch", f"{_named(cards)} can't be used")
    if too_new:
        if driver and driver < _CUDA_13_DRIVER:
            concern = f"{_shown(too_new[0])} needs CUDA 13, and CUDA 13 needs driver 580: update driver {driver_text}"
            if len(too_new) == len(cards):
                return Build("cpu", f"driver {driver_text} is too old for {_shown(too_new[0])}", concern)
            return Build("cu126", f"driver {driver_text} is older than 580", concern)
        concern = f"{_named(old)} can't be used beside {too_new[0].name}: no build has kernels for both" if old else ""
        return Build("cu130", f"{_shown(too_new[0])} needs CUDA 13", concern)
    concern = f"{_named(too_old)} can't be used: torch has no kernels for it" if too_old else ""
    if old:
        return Build("cu126", f"CUDA 13 has no kernels for {_shown(old[0])}", concern)
    if not driver or driver < _CUDA_13_DRIVER:
        return Build("cu126", f"driver {driver_text or 'unknown'} is older than 580, which CUDA 13 needs", concern)
    if not known:
        return Build("cu126", "compute capability unknown: CUDA 12 has kernels for most cards", concern)
    return Build("cu130", f"{_shown(known[0][1])}, driver {driver_text}", concern)


def version(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with; empty where there are none."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _shown(card: Accelerator) -> str:
    return f"{card.name} (compute capability {card.capability})"


def _named(cards: Sequence[Accelerator]) -> str:
    return ", ".join(dict.fromkeys(card.name for card in cards))
