"""NVIDIA GPUs through NVML (package ``nvidia-ml-py``; docs.nvidia.com/deploy/nvml-api).

NVML counts GPUs by PCI address. So does CUDA in Ray's processes, where ``CUDA_DEVICE_ORDER`` says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from remote_agent.protocol import DeviceSample


def read() -> tuple[DeviceSample, ...]:
    """One sample per GPU; none without a driver. Memory that is shared with the processor (Jetson, GB10) is None."""
    nvml = _library()
    if nvml is None:
        return ()
    try:
        count: int = nvml.nvmlDeviceGetCount()
        return tuple(_sample(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count))
    except nvml.NVMLError:  # a GPU that fell off the bus, or a driver that is being replaced
        return ()


@functools.cache
def _library() -> Any:
    """NVML, started; None where there is no package or no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _sample(nvml: Any, index: int, handle: Any) -> DeviceSample:
    def ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except nvml.NVMLError:  # most figures are missing on some GPU
            return None

    use = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    temperature = ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    milliwatts = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    name = ask(lambda: nvml.nvmlDeviceGetName(handle))
    return DeviceSample(
        device=f"cuda:{index}",
        name=name.decode(errors="replace") if isinstance(name, bytes) else name or "NVIDIA GPU",
        use=None if use is None else use / 100,
        memory_used=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        temperature_c=None if temperature is None else float(temperature),
        power_w=None if milliwatts is None else milliwatts / 1000,
    )
