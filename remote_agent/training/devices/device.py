"""What differs from one kind of device to the next: is it there, move a batch, wait for it, which numbers it takes."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import torch

from remote_agent.training.errors import PlacementError

ANY_GPU = "gpu"
"""Asks for whatever accelerator the node has: CUDA (or ROCm, which torch calls cuda too) first, then Apple's MPS."""


def find(name: str) -> torch.device:
    """The torch device of that name (``cpu``, ``cuda:N``, ``mps`` or ``gpu``).

    Raises:
        PlacementError: this machine has no such device.
    """
    mps, cuda = torch.backends.mps.is_available(), torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = ["cpu", *(f"cuda:{index}" for index in range(cuda)), *(["mps"] if mps else [])]
    if name == ANY_GPU and len(there) > 1:
        name = there[1]
    if name == "cuda" and cuda:
        name = "cuda:0"
    if name not in there:
        raise PlacementError(
            f"there is no device {name!r} here; torch {torch.__version__} sees: {', '.join(there)}",
            hint="name one of these for the host, or install a torch build and driver for the device",
        )
    return torch.device(name)


def move(batch: Any, device: torch.device) -> Any:
    """``batch`` with all tensors in it on ``device``; tuples, lists and mappings are kept as they are."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(move(value, device) for value in batch)
    return batch


def synchronize(device: torch.device) -> None:
    """Return when all work given to ``device`` is done, so that a time taken next is honest."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


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
    if precision == "fp16" and device.type == "cpu":
        return torch.bfloat16, "autocast to bf16: a CPU has no fast fp16"
    if not torch.amp.is_autocast_available(device.type):
        return None, f"computes in fp32: torch {torch.__version__} has no autocast for {device.type}"
    if precision == "bf16" and not _has_bfloat16(device):
        return None, f"computes in fp32: {_name(device)} has no bf16; precision=fp16 may be faster there"
    if precision == "bf16":
        return torch.bfloat16, "autocast to bf16"
    return torch.float16, "autocast to fp16, with its own loss scaling"


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    return True


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"this {device.type} device"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that a device's or the host's memory is full."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The CPU's allocator and MPS raise a plain RuntimeError.
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _FULL)


_FULL = ("can't allocate memory", "not enough memory", "bad_alloc", "MPS backend out of memory", "CUDA out of memory")


def release_memory(device: torch.device) -> None:
    """Give back what is no longer in use: cycles of Python objects, and what torch keeps for later."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
