"""Whether a process has ended, for tests of several packages: it may do so at any moment, also while one looks."""

from __future__ import annotations

import time

import psutil


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def ends(pid: int, seconds: float = 30.0) -> bool:
    """Wait until a process has ended; False when it has not within so many seconds."""
    last = time.monotonic() + seconds
    while not has_ended(pid):
        if time.monotonic() > last:
            return False
        time.sleep(0.02)
    return True
