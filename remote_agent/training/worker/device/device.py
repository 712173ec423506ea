"""Implements training's operations on a device: check it, move a batch to it, wait for it, list its dtypes."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from typing import Any

import torch

from remote_agent.training.errors import PlacementError
from remote_agent.training.worker.device import backend

ANY_GPU = "gpu"
"""Asks for whatever accelerator the node has, the first kind of the table that is there."""


def find(name: str) -> torch.device:
    """The torch device of that name, as the table of kinds has them, or ``gpu``.

    Raises:
        PlacementError: this machine has no such device.
    """
    there = [each for kind in backend.kinds().values() for each in kind.names()]
    if name == ANY_GPU and len(there) > 1:
        name = there[0]
    name = next((each for each in there if each in (name, f"{name}:0")), name)
    if name not in there:
        raise PlacementError(
            f"there is no device {name!r} here; torch {torch.__version__} sees: {', '.join(there)}",
            hint="name one of these for the host, or install a torch build and driver for the device",
        )
    return torch.device(name)


def move(batch: Any, device: torch.device) -> Any:
    """``batch`` with all tensors in it on ``device``; tuples, lists and mappings are kept as they are."""
    if not backend.of(device).own_memory:
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(move(value, device) for value in batch)
    return batch


def seed(device: torch.device, number: int) -> None:
    """Seed torch's random numbers on the CPU and on ``device``.

    ``torch.manual_seed`` does that for every kind of device, and formats the stack for those that are not in use: about
    a millisecond.
    """
    torch.default_generator.manual_seed(number)
    backend.of(device).seed(device, number)


def be_deterministic() -> None:
    """Have this process's devices compute the same bits each time, where torch can; before a device is used."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as torch.use_deterministic_algorithms asks for
    torch.use_deterministic_algorithms(True, warn_only=True)


def synchronize(device: torch.device) -> None:
    """Return when all work given to ``device`` is done, so that a time taken next is honest."""
    backend.of(device).synchronize(device)


def autocast_dtype(device: torch.device, precision: str) -> tuple[torch.dtype | None, str]:
    """What forward and backward compute in on ``device``, and why, for the plan.

    Args:
        device: where.
        precision: what is asked for; one of the configuration's ``PRECISIONS``.

    Returns:
        The dtype to autocast to; None: float32, as the weights. And a sentence; empty when float32 was asked for.
    """
    if precision == "fp32":
        return None, ""
    kind = backend.of(device)
    if precision == "fp16" and device.type == kind.kind and not kind.has_fast_fp16:
        return torch.bfloat16, "autocast to bf16: a CPU has no fast fp16"
    if not torch.amp.is_autocast_available(device.type):
        return None, f"computes in fp32: torch {torch.__version__} has no autocast for {device.type}"
    if precision == "bf16" and not kind.has_bfloat16(device):
        return None, f"computes in fp32: {kind.title(device)} has no bf16; precision=fp16 may be faster there"
    if precision == "bf16":
        return torch.bfloat16, "autocast to bf16"
    return torch.float16, "autocast to fp16, with its own loss scaling"


def release_memory(device: torch.device) -> None:
    """Give back what is no longer in use: cycles of Python objects, and what torch keeps for later."""
    gc.collect()
    backend.of(device).release()
