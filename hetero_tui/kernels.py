"""Which accelerators a build of torch has kernels for. Pure.

Kernels in torch 2.12 to 2.14: cu126 has sm_50 to sm_90, cu130 has sm_75 and newer. A build without kernels for a card
imports well and fails, or crashes, at its first operation. Of other builds nothing is known here: nothing is refused.
"""

from __future__ import annotations

import re

from remote_agent.device_kinds import KINDS

OLDEST_CARD, CUDA_13_CARD, NEWEST_CUDA_12_CARD = (5, 0), (7, 5), (9, 0)

_ROCM_7_2 = frozenset(
    f"gfx{name}"
    for name in "900 906 908 90a 942 950 1030 1100 1101 1102 1103 1150 1151 1200 1201".split()  # noqa: SIM905
)
"""https://github.com/pytorch/pytorch/blob/release/2.13/.ci/docker/manywheel/build.sh, PYTORCH_ROCM_ARCH."""


def refusal(build: str, kind: str, capability: str) -> str:
    """Why a torch of this build can't compute on an accelerator, in words; empty: it can, as far as is known."""
    if not build.startswith(KINDS[kind].build):
        title = next((each.title for each in KINDS.values() if build.startswith(each.build)), "the CPU")
        return f"torch is built for {title}"
    number = version(capability)
    if kind == "cuda" and number:
        too_old = number < (CUDA_13_CARD if build.startswith("cu13") else OLDEST_CARD)
        too_new = build == "cu126" and number[:2] > NEWEST_CUDA_12_CARD
        if too_old or too_new:
            return f"torch {build} has no kernels for compute capability {capability}"
    if build == KINDS["rocm"].installed and capability.startswith("gfx") and capability not in _ROCM_7_2:
        return f"torch {build} has no kernels for {capability}"
    return ""


def version(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with; empty where there are none."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
