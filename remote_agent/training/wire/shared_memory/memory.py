"""Allocates memory without a name that two processes share; the kernel frees it when neither uses it any more."""

from __future__ import annotations

import mmap
import os

import torch
from torch import Tensor

_BYTES = 4


def allocate(numel: int) -> tuple[int, Tensor]:
    """Allocate zeros; returns a file descriptor (the caller closes it) and a float32 tensor of shape ``(numel,)``.

    Raises:
        OSError: there is not enough memory.
    """
    descriptor = os.memfd_create("hetero-tui", os.MFD_CLOEXEC)
    try:
        # Allocate now; at the first write a lack of memory would be a signal instead of an error.
        os.posix_fallocate(descriptor, 0, _BYTES * numel)
        return descriptor, attach(descriptor, numel)
    except OSError:
        os.close(descriptor)
        raise


def attach(descriptor: int, numel: int) -> Tensor:
    """Map shared memory as a float32 tensor of shape ``(numel,)``; the descriptor may be closed afterwards.

    Raises:
        OSError: the memory is smaller than that, or can't be mapped.
    """
    if os.fstat(descriptor).st_size < _BYTES * numel:
        raise OSError(f"the shared memory holds fewer than {numel} numbers")
    return torch.frombuffer(mmap.mmap(descriptor, _BYTES * numel), dtype=torch.float32)
