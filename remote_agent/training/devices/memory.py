"""How many samples a device can take at a time: found with a few small slices, never by filling its memory.

A slice of ``b`` samples needs ``fixed + b * each`` bytes at its peak. Sizes grow, from the smallest, until the growth
stands out from what else goes on in memory; from two sizes follow ``fixed`` and ``each``, and from these what fits into
a safe part of what is free. A size is tried only where it fits even if the one before it had needed nothing but memory
for its samples.
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from remote_agent.training.devices import device as devices

MIB = 1 << 20

SIGNAL = 64 * MIB
"""Growth of the peak that is measured well enough."""

GROWTH = (8, 4, 2)
"""From one size to the next, the first that is safe."""

SAFE_PART = {"cpu": 0.5, "mps": 0.6, "cuda": 0.9}
"""Part of the free memory that slices may fill. A host's memory has other users, and MPS shares it with them."""


@dataclass(frozen=True)
class Need:
    """Bytes in use at the peak of a slice of ``b`` samples, beside everything else: ``fixed + b * each``."""

    fixed: float
    each: float

    def most(self, budget: float) -> int:
        """Samples that fit into ``budget`` bytes, at least 1."""
        return max(1, math.floor((budget - self.fixed) / self.each))


def need(points: Sequence[tuple[int, int]]) -> Need | None:
    """From ``(samples, bytes at the peak)`` of the smallest and the largest size; None: a sample costs nothing much."""
    (small, low), (large, high) = min(points), max(points)
    if large <= small or high <= low:
        return None
    each = (high - low) / (large - small)
    return Need(low - small * each, each)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What was found.

    Attributes:
        most: samples that fit into the budget; None: more than anybody will ask for.
        each: bytes that a sample needs; 0: too few to be seen.
        budget: bytes that may be in use at the peak, by this process on the device.
    """

    most: int | None
    each: float
    budget: float


def find(device: torch.device, compute: Callable[[int], None], smallest: int, largest: int, batch: int) -> Limit:
    """How many samples of a batch of ``batch`` the device can take at a time.

    Args:
        device: where ``compute`` computes.
        compute: forward and backward of that many samples.
        smallest: the first size to try, twice: the first time warms the device up.
        largest: no size above it is tried.
        batch: nobody will ask for more samples than that.
    """
    before = used_bytes(device)
    compute(smallest)
    points: list[tuple[int, int]] = []
    following: int | None = smallest
    while following is not None:
        points.append((following, peak_bytes(device, compute, following)))
        budget = used_bytes(device) + SAFE_PART[device.type] * free_bytes(device)
        following = next_size(points, before, budget, largest)
    found = need(points)
    if found is None:
        return Limit(most=None, each=0.0, budget=budget)
    most = found.most(budget)
    return Limit(most=most if most < batch else None, each=found.each, budget=budget)


def next_size(points: Sequence[tuple[int, int]], before: int, budget: float, largest: int) -> int | None:
    """The size to try after ``points``; None: enough is known, or nothing larger is safe.

    Args:
        points: ``(samples, bytes at the peak)`` so far, sizes rising.
        before: bytes in use before the first.
        budget: bytes that may be in use.
        largest: no size above it is tried.
    """
    (_, low), (size, high) = points[0], points[-1]
    if size >= largest or high - low >= SIGNAL:
        return None
    for factor in GROWTH:
        following = min(factor * size, largest)
        if before + (high - before) * following / size <= budget:
            return following
    return None


# --- Readings --------------------------------------------------------------------------------------------------------


def used_bytes(device: torch.device) -> int:
    """In use by this process, of the memory that ``device`` computes in."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return int(psutil.Process().memory_info().rss)


def peak_bytes(device: torch.device, compute: Callable[[int], None], size: int) -> int:
    """The most that was in use, as :func:`used_bytes`, while ``compute(size)`` ran."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        compute(size)
        devices.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":  # has no peak; but what the driver gave is kept until it is asked back
        torch.mps.empty_cache()
        compute(size)
        devices.synchronize(device)
        return torch.mps.driver_allocated_memory()
    counted_anew = _reset_peak()
    compute(size)
    if counted_anew:
        return _status_bytes("VmHWM")
    # The peak of the whole process so far, which growing sizes raise.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_bytes(device: torch.device) -> float:
    """What this process can still take of the memory that ``device`` computes in."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    info = psutil.Process().memory_info()
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    rooms = [float(psutil.virtual_memory().available), *rooms_of_control_groups()]
    if address_space != resource.RLIM_INFINITY:
        rooms.append(address_space - info.vms)
    return max(0.0, min(rooms))


def _reset_peak() -> bool:
    """Let the kernel count ``VmHWM`` anew (proc(5), ``clear_refs``); False where it does not."""
    try:
        Path("/proc/self/clear_refs").write_text("5\n")
    except OSError:
        return False
    return True


def _status_bytes(name: str) -> int:
    """A size from ``/proc/self/status``, where it is in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def rooms_of_control_groups(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[float]:
    """What each control group of this process leaves of its limit (Linux: cgroups(7), version 2 and 1).

    A container often sees its own group as the root, whatever path ``membership`` says: parents are looked at as well.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, limit, usage = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            folder, limit, usage = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = folder / path.lstrip("/")
        for level in (group, *group.parents):
            if not level.is_relative_to(folder):
                break
            try:  # "max" is no number: no limit
                yield float((level / limit).read_text()) - float((level / usage).read_text())
            except (OSError, ValueError):
                continue
