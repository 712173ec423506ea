"""One machine's use as a whole: processor, memory, network, and all its devices in one :class:`HostSample`."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path

import psutil

from remote_agent import device_kinds, probe
from remote_agent.host import layout, node, processes, ray_command
from remote_agent.protocol import DeviceSample, HostSample
from remote_agent.sampling.link import HeadLink
from remote_agent.sampling.own_use import OwnUse


class HostSampler:
    """Reads this machine again and again; what is a rate is taken from one reading to the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cpus = psutil.cpu_count() or 1
        self._own = OwnUse(folder) if ray_command.is_simulated(os.environ) else None
        _, torch_build = probe.read_packages(None)
        # An AMD GPU that this Python's torch can't use, such as a processor's own, has no part in what is trained here;
        # torch would call it by the name of an NVIDIA one.
        used = device_kinds.built_for(torch_build)
        self._readers = [importlib.import_module(kind.sampler).read for kind in used if kind.sampler]
        self._cpu_name = str(probe.read_cpu(probe.Commands(1.0))["model"])
        self._head = HeadLink(folder)
        self._at: float | None = None
        self._traffic: tuple[int, int] | None = None

    def read(self) -> HostSample:
        """The machine now. Rates are None in the first sample: there is nothing to compare it with."""
        now = time.monotonic()
        elapsed = 0.0 if self._at is None else now - self._at
        self._at = now
        if self._own is not None:
            cpu, used = self._own.look(elapsed, self._cpus)
            total: int | None = psutil.virtual_memory().total
        else:
            percent = psutil.cpu_percent(interval=None)
            cpu = percent / 100 if elapsed > 0 else None
            used, total = _memory()
        sent, received = self._rates(elapsed)
        spec = layout.read_spec(self._folder)
        processor = DeviceSample(
            device="cpu",
            name=self._cpu_name,
            use=cpu,
            memory_used=used,
            memory_total=total,
            temperature_c=_processor_temperature(),
        )
        return HostSample(
            time=time.time(),
            cpu_use=cpu,
            memory_used=used,
            memory_total=total,
            ray=node.ray_state(self._folder),
            devices=(processor, *(sample for read in self._readers for sample in read())),
            bytes_sent_per_s=sent,
            bytes_received_per_s=received,
            run=_live_run(self._folder),
            head_delay_s=self._head.read(),
            epoch=spec.epoch if spec is not None else 0,
        )

    def _rates(self, elapsed: float) -> tuple[float | None, float | None]:
        """Bytes a second through the network interfaces, loopback left out; unknown for a simulated machine."""
        if self._own is not None:
            return None, None
        interfaces = psutil.net_io_counters(pernic=True, nowrap=True)
        real = [counters for name, counters in interfaces.items() if not name.startswith("lo")]
        traffic = sum(counters.bytes_sent for counters in real), sum(counters.bytes_recv for counters in real)
        before, self._traffic = self._traffic, traffic
        if before is None or elapsed <= 0:
            return None, None
        return max(0, traffic[0] - before[0]) / elapsed, max(0, traffic[1] - before[1]) / elapsed


def _live_run(folder: Path) -> str:
    names = [name for name in processes.recorded_names(folder) if name.startswith(layout.RUN_PREFIX)]
    alive = [name for name in names if processes.find_named(folder, name) is not None]
    return alive[-1].removeprefix(layout.RUN_PREFIX) if alive else ""


def _memory() -> tuple[int | None, int | None]:
    """(used, total) bytes that this machine, or the container that it is, may use."""
    if probe.MACOS:
        memory = psutil.virtual_memory()
        return memory.total - memory.available, memory.total
    total, available = probe.linux_memory()
    return None if total is None or available is None else total - available, total


def _processor_temperature() -> float | None:
    """The processor's temperature in Celsius from the sensors that Linux names so; None where there are none."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    sensors = psutil.sensors_temperatures()
    for name in ("coretemp", "k10temp", "zenpower", "cpu_thermal"):
        for reading in sensors.get(name, []):
            return float(reading.current)
    return None
