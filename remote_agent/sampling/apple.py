"""Apple's GPU through ``ioreg``: its driver's own statistics, readable without root. Power would need root: None."""

from __future__ import annotations

import functools
import platform
import re
import subprocess

from remote_agent import deadlines
from remote_agent.protocol import DeviceSample

_IOREG = ("ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")


def read() -> tuple[DeviceSample, ...]:
    """One sample on a Mac with Apple silicon, none elsewhere. GPU and processor share the memory."""
    if not _is_apple_silicon():
        return ()
    try:
        done = subprocess.run(
            _IOREG, capture_output=True, text=True, timeout=deadlines.VENDOR_COMMAND_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return (DeviceSample(device="mps", name="Apple GPU", memory_total=_memory_total()),)
    return parse_ioreg(done.stdout, _memory_total())


def parse_ioreg(text: str, memory_total: int | None) -> tuple[DeviceSample, ...]:
    """The first accelerator's ``PerformanceStatistics`` in the output of ``ioreg -c IOAccelerator``."""
    model = re.search(r'"model" = "([^"]+)"', text)
    use = re.search(r'"Device Utilization %"=(\d+)', text)
    memory = re.search(r'"In use system memory"=(\d+)', text)
    return (
        DeviceSample(
            device="mps",
            name=model.group(1) if model else "Apple GPU",
            use=int(use.group(1)) / 100 if use else None,
            memory_used=int(memory.group(1)) if memory else None,
            memory_total=memory_total,
        ),
    )


def _is_apple_silicon() -> bool:
    return platform.system() == "Darwin" and platform.machine() == "arm64"


@functools.cache
def _memory_total() -> int | None:
    import psutil

    total: int = psutil.virtual_memory().total
    return total
