"""AMD GPUs through what the amdgpu kernel driver shows in sysfs: no library, no program, no root.

Files and units: docs.kernel.org/gpu/amdgpu/thermal.html and .../driver-misc.html. ``amdsmi`` and ``rocm-smi`` read the
same files, at a tenth of a second a call.
"""

from __future__ import annotations

from pathlib import Path

from remote_agent.protocol import DeviceSample

DRIVERS_FOLDER = Path("/sys/bus/pci/drivers/amdgpu")


def read(drivers: Path = DRIVERS_FOLDER) -> tuple[DeviceSample, ...]:
    """One sample per GPU in the order of PCI addresses, which is also ROCm's; torch calls them ``cuda``."""
    folders = sorted(folder for folder in drivers.glob("*:*") if (folder / "mem_info_vram_total").exists())
    return tuple(_sample(index, folder) for index, folder in enumerate(folders))


def _sample(index: int, folder: Path) -> DeviceSample:
    use = _number(folder / "gpu_busy_percent")
    sensors = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder)
    millidegrees = _number(sensors / "temp1_input")
    microwatts = _number(sensors / "power1_average")
    if microwatts is None:
        microwatts = _number(sensors / "power1_input")
    return DeviceSample(
        device=f"cuda:{index}",
        name=_text(folder / "product_name") or "AMD GPU",
        use=None if use is None else use / 100,
        memory_used=_number(folder / "mem_info_vram_used"),
        memory_total=_number(folder / "mem_info_vram_total"),
        temperature_c=None if millidegrees is None else millidegrees / 1000,
        power_w=None if microwatts is None else microwatts / 1_000_000,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # a sensor that this GPU has not, or that sleeps
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None
