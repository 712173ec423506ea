"""The kinds of devices, as one table: all that differs from one kind to the next.

A further kind is one class here (and what finds it on a host: ``remote_agent.probe``), or in a job's file, which
:func:`register` makes known to all workers. Kinds without a class of their
own, such as torch's ``meta``, are treated as the CPU is.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from remote_agent import probe
from remote_agent.training.shared import own_devices


class Backend:
    """A kind of device; this one is the CPU.

    Attributes:
        kind: as torch has it in ``torch.device.type``, or a whole device such as ``cpu:1`` that differs from its type.
        safe_part: part of the free memory that slices may fill. A host's memory has other users.
        has_fast_fp16: half precision is worth computing in.
        own_memory: it computes in memory of its own, from and to which tensors are copied.
        tolerance: the most that a loss in float32 may differ by rounding, as a part of itself.
        widest: the widest dtype of real numbers that it computes in.
        one_thread: only the thread that computes may use its tensors; others get copies on the CPU.
    """

    kind = "cpu"
    safe_part = 0.5
    has_fast_fp16 = False
    own_memory = False
    tolerance = 3e-5
    widest = torch.float64
    one_thread = False

    def names(self) -> list[str]:
        """Of the devices of this kind that torch sees here."""
        return [self.kind]

    def title(self, device: torch.device) -> str:
        """What ``device`` is called in messages."""
        return f"this {device.type} device"

    def select(self, device: torch.device) -> None:
        """Have this thread's ``.to(kind)`` without a number, and what is made for the kind, be on ``device``."""

    def synchronize(self, device: torch.device) -> None:
        """Return when all work given to ``device`` is done."""

    def release(self) -> None:
        """Give back memory that is kept for later; here that which C's library keeps, where it is glibc's."""
        with contextlib.suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)

    def seed(self, device: torch.device, number: int) -> None:
        """Seed the random numbers of ``device``, beside those of the CPU."""

    def generator(self, device: torch.device) -> Tensor | None:
        """The state of its random numbers; None: they are the CPU's."""
        del device
        return None

    def restore_generator(self, device: torch.device, state: Tensor) -> None:
        """Bring back what :meth:`generator` gave."""

    def has_bfloat16(self, device: torch.device) -> bool:
        """Whether it computes in bfloat16 by itself."""
        del device
        return True

    def used_bytes(self, device: torch.device) -> int:
        """In use by this process, of the memory that ``device`` computes in."""
        del device
        return int(psutil.Process().memory_info().rss)

    def peak_bytes(self, device: torch.device, compute: Callable[[], None]) -> int:
        """The most that was in use, as :meth:`used_bytes`, while ``compute`` ran."""
        del device
        counted_anew = _reset_peak()
        compute()
        if counted_anew:
            return _status_bytes("VmHWM")
        # The peak of the whole process so far, which growing sizes raise.
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def free_bytes(self, device: torch.device) -> float:
        """What this process can still take of the memory that ``device`` computes in."""
        del device
        info = psutil.Process().memory_info()
        address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
        rooms = [float(psutil.virtual_memory().available), *rooms_of_control_groups()]
        if address_space != resource.RLIM_INFINITY:
            rooms.append(address_space - info.vms)
        data, _ = resource.getrlimit(resource.RLIMIT_DATA)
        if data != resource.RLIM_INFINITY and sys.platform.startswith("linux"):
            rooms.append(data - _status_bytes("VmData"))
        return max(0.0, min(rooms))


class Cuda(Backend):
    """NVIDIA's GPUs, and AMD's, which torch calls by the same name; ``api``: torch's module for this kind."""

    kind = "cuda"
    safe_part = 0.9
    has_fast_fp16 = True
    own_memory = True
    tolerance = 2e-4
    api: Any = torch.cuda

    def names(self) -> list[str]:
        count = self.api.device_count() if self.api.is_available() else 0
        return [f"{self.kind}:{index}" for index in range(count)]

    def title(self, device: torch.device) -> str:
        return str(self.api.get_device_name(device))

    def select(self, device: torch.device) -> None:
        self.api.set_device(device)

    def synchronize(self, device: torch.device) -> None:
        self.api.synchronize(device)

    def release(self) -> None:
        self.api.empty_cache()

    def seed(self, device: torch.device, number: int) -> None:
        with self.api.device(device):
            self.api.manual_seed(number)

    def generator(self, device: torch.device) -> Tensor | None:
        state: Tensor = self.api.get_rng_state(device)
        return state

    def restore_generator(self, device: torch.device, state: Tensor) -> None:
        self.api.set_rng_state(state, device)

    def has_bfloat16(self, device: torch.device) -> bool:
        with self.api.device(device):  # it asks the current one
            return bool(self.api.is_bf16_supported(including_emulation=False))

    def used_bytes(self, device: torch.device) -> int:
        return int(self.api.memory_allocated(device))

    def peak_bytes(self, device: torch.device, compute: Callable[[], None]) -> int:
        self.api.reset_peak_memory_stats(device)
        compute()
        self.api.synchronize(device)
        return int(self.api.max_memory_allocated(device))

    def free_bytes(self, device: torch.device) -> float:
        free, _ = self.api.mem_get_info(device)
        return float(free + self.api.memory_reserved(device) - self.api.memory_allocated(device))


class Xpu(Cuda):
    """Intel's GPUs: torch has the same functions for them."""

    kind = "xpu"
    api = torch.xpu
    widest = torch.float32  # Arc has no float64


class Mps(Backend):
    """Apple's GPUs, which share the host's memory."""

    kind = "mps"
    safe_part = 0.6
    has_fast_fp16 = True
    own_memory = True
    tolerance = 2e-4
    widest = torch.float32
    one_thread = True  # two at once end the process: pytorch/pytorch#197805

    def names(self) -> list[str]:
        return [self.kind] if torch.backends.mps.is_available() else []

    def synchronize(self, device: torch.device) -> None:
        torch.mps.synchronize()

    def release(self) -> None:
        torch.mps.empty_cache()

    def seed(self, device: torch.device, number: int) -> None:
        torch.mps.manual_seed(number)

    def generator(self, device: torch.device) -> Tensor | None:
        return torch.mps.get_rng_state()

    def restore_generator(self, device: torch.device, state: Tensor) -> None:
        torch.mps.set_rng_state(state)

    def has_bfloat16(self, device: torch.device) -> bool:
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))

    def used_bytes(self, device: torch.device) -> int:
        return torch.mps.driver_allocated_memory()

    def peak_bytes(self, device: torch.device, compute: Callable[[], None]) -> int:
        # It has no peak; but what the driver gave is kept until it is asked back.
        torch.mps.empty_cache()
        compute()
        torch.mps.synchronize()
        return torch.mps.driver_allocated_memory()

    def free_bytes(self, device: torch.device) -> float:
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())


CPU = Backend()

BACKENDS: dict[str, Backend] = {backend.kind: backend for backend in (Cuda(), Xpu(), Mps(), CPU)}
"""By kind; where any accelerator will do, the first that is there is taken."""


def register(backend: Backend) -> None:
    """Have one more, or another in the place of one: a job's file does so, and the workers get it with the job."""
    own_devices.KINDS[backend.kind] = backend


def kinds() -> dict[str, Backend]:
    """All kinds by name, the job's own first."""
    return {**own_devices.KINDS, **{kind: of for kind, of in BACKENDS.items() if kind not in own_devices.KINDS}}


def of(device: torch.device) -> Backend:
    """The kind of ``device``."""
    there = kinds() if own_devices.KINDS else BACKENDS
    return there.get(str(device)) or there.get(device.type, CPU)


# --- The CPU's memory ------------------------------------------------------------------------------------------------


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
    """What each control group of this process leaves of its limit; see :func:`~remote_agent.probe.memory_limit`."""
    for folder in probe.cgroup_folders("memory", probe.read_text(str(membership)) or "", str(root)):
        found = probe.memory_limit(folder)
        if found is not None:
            yield float(found[0] - found[1])
