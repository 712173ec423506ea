"""What differs from one kind of device to the next: is it there, move a batch, wait for it, say its memory."""

from __future__ import annotations

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


def memory_bytes(device: torch.device) -> int | None:
    """Memory in use by this process's tensors on ``device``; None for the CPU, where torch does not count it."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    return None
