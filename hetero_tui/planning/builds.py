"""Chooses the build of torch for a machine from its accelerators, their drivers and its system, with a reason. Pure.

CUDA 12 needs driver 525.60 or newer (CUDA's minor version compatibility), CUDA 13 needs 580. The driver alone does not
decide: a build needs kernels for the card as well (:mod:`hetero_tui.facts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_tui.facts import (
    CUDA_13_CARD,
    NEWEST_CUDA_12_CARD,
    OLDEST_CARD,
    Accelerator,
    HostFacts,
    kernel_refusal,
    version,
)
from remote_agent.device_kinds import KINDS

_OLDEST_DRIVER = (525, 60)
_CUDA_13_DRIVER = (580,)

_CHOOSE = "name those that shall train as `devices:` of this host, then `hetero-tui bootstrap`"
_NOTHING = "nothing is needed; `devices:` of this host without it ends this message"
_UPDATE = "update the driver, then `hetero-tui bootstrap`"


@dataclass(frozen=True, slots=True)
class Build:
    """One of torch's builds: ``cpu``, ``cu126``, ``cu130``, ``rocm7.2``, ``xpu`` or ``mps``, and why it was chosen.

    ``concern`` is what its user should know: an accelerator that this build can't use. ``mend`` would change that.
    """

    name: str
    why: str
    concern: str = ""
    mend: str = ""

    @property
    def local_version(self) -> str:
        """What follows ``+`` in the version of PyTorch's own wheels; empty where PyPI's wheel is the one."""
        return "" if self.name == "mps" else self.name


def torch_build(facts: HostFacts, devices: Sequence[str] | None = None, before: str | None = None) -> Build:
    """The build for this machine.

    Args:
        devices: those that the inventory lets train, if it names any.
        before: the build that its environment has had, as far as the facts do not say.
    """
    cards = [
        card
        for card in facts.preferred_accelerators
        if devices is None or card.device in devices or KINDS[card.kind].torch in devices
    ]
    if facts.os.system == "Darwin":
        return Build("mps", "macOS: the one build there is holds CPU and Apple GPU")
    if devices is not None and set(devices) == {"cpu"}:
        return Build("cpu", "the inventory lets its CPU alone train")
    had = facts.torch_build or before or ""
    unread = next((KINDS[name] for name in facts.unread if had.startswith(KINDS[name].build)), None)
    if unread is not None:  # one failure of a tool must not take a working build away
        return Build(had, f"as before: {unread.vendor}'s tool failed, so that it is not known which GPUs are there")
    if not cards:
        return Build("cpu", "no accelerator was found")
    kind = KINDS[cards[0].kind]
    return _with_kernels(kind.installed, cards) if kind.installed else _for_nvidia(cards)


def _with_kernels(build: str, cards: Sequence[Accelerator]) -> Build:
    """The one build that there is for a vendor's cards, where it has kernels for some of them."""
    refused = {card: kernel_refusal(build, card.kind, card.capability or "") for card in cards}
    left = [card for card, why in refused.items() if why]
    concern = f"{_named(left)} can't be used: {refused[left[0]]}" if left else ""
    mend = _NOTHING if left else ""
    if len(left) == len(cards):
        return Build("cpu", refused[cards[0]], concern, mend)
    return Build(build, f"an {KINDS[cards[0].kind].vendor} GPU", concern, mend)


def _for_nvidia(cards: Sequence[Accelerator]) -> Build:
    driver_text = next((card.driver for card in cards if card.driver), "")
    driver = version(driver_text)
    capable = [(version(card.capability or ""), card) for card in cards]
    known = [(capability, card) for capability, card in capable if capability]
    if driver and driver < _OLDEST_DRIVER:
        concern = f"driver {driver_text} is older than 525.60, which CUDA 12 needs: update it to use {_named(cards)}"
        return Build("cpu", f"driver {driver_text} is too old for any CUDA build of this torch", concern, _UPDATE)
    old = [card for capability, card in known if capability < CUDA_13_CARD]
    too_old = [card for capability, card in known if capability < OLDEST_CARD]
    too_new = [card for capability, card in known if capability[:2] > NEWEST_CUDA_12_CARD]
    if len(too_old) == len(cards):
        why = f"{_shown(too_old[0])} is older than any kernel of torch"
        return Build("cpu", why, f"{_named(cards)} can't be used: {why}", _NOTHING)
    if too_new:
        if driver and driver < _CUDA_13_DRIVER:
            concern = f"{_shown(too_new[0])} needs CUDA 13, and CUDA 13 needs driver 580: update driver {driver_text}"
            if len(too_new) == len(cards):
                return Build("cpu", f"driver {driver_text} is too old for {_shown(too_new[0])}", concern, _UPDATE)
            return Build("cu126", f"driver {driver_text} is older than 580", concern, _UPDATE)
        concern = f"{_named(old)} can't be used beside {too_new[0].name}: no build has kernels for both" if old else ""
        return Build("cu130", f"{_shown(too_new[0])} needs CUDA 13", concern, _CHOOSE if concern else "")
    concern = f"{_named(too_old)} can't be used: torch has no kernels for it" if too_old else ""
    mend = _NOTHING if concern else ""
    if old:
        return Build("cu126", f"CUDA 13 has no kernels for {_shown(old[0])}", concern, mend)
    if not driver or driver < _CUDA_13_DRIVER:
        return Build("cu126", f"driver {driver_text or 'unknown'} is older than 580, which CUDA 13 needs")
    if not known:
        return Build("cu126", "compute capability unknown: CUDA 12 has kernels for most cards")
    return Build("cu130", f"{_shown(known[0][1])}, driver {driver_text}")


def _shown(card: Accelerator) -> str:
    return f"{card.name} (compute capability {card.capability})"


def _named(cards: Sequence[Accelerator]) -> str:
    return ", ".join(dict.fromkeys(card.name for card in cards))
