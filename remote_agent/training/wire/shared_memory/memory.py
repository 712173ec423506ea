"""Allocates memory without a name that two processes share; the kernel frees it when neither uses it any more."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

import torch
from torch import Tensor

_BYTES = 4
_CLOSE_ON_EXEC = 1  # MFD_CLOEXEC


def available() -> bool:
    """Whether this computer has such memory.

    The C library is asked, and not ``os``: a Python that was built for older Linuxes, as uv's are, does not have the
    function.
    """
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "memfd_create")


def allocate(numel: int) -> tuple[int, Tensor]:
    """Allocate zeros; returns a file descriptor (the caller closes it) and a float32 tensor of shape ``(numel,)``.

    Raises:
        OSError: there is not enough memory.
    """
    descriptor = ctypes.CDLL(None, use_errno=True).memfd_create(b"hetero-tui", _CLOSE_ON_EXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        # Allocate now; at the first write a lack of memory would be a signal instead of an error.
        os.posix_fallocate(descriptor, 0, _BYTES * numel)
        return descriptor, attach(descriptor, numel)
    except OSError:
        os.close(descriptor)
        raise


def attach(descriptor: int, numel: int) -> Tensor:
    """Map shared memory as float32 of shape ``(numel,)``; the descriptor may be closed then. Raises OSError."""
    if os.fstat(descriptor).st_size < _BYTES * numel:
        raise OSError(f"the shared memory holds fewer than {numel} numbers")
    return torch.frombuffer(mmap.mmap(descriptor, _BYTES * numel), dtype=torch.float32)
