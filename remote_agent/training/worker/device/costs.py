"""What a step costs beside forward and backward: the optimizer's step, codecs, and when gradients are there.

Measured before the first step, for the planner. What is measured here changes nothing of the model: optimizers work on
numbers of their own. Devices measure AdamW, the coordinator how the job's own optimizer compares with that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from remote_agent.planning.sharding import CHUNK_NUMBERS
from remote_agent.training.shared.device_costs import DeviceCosts
from remote_agent.training.wire import codecs
from remote_agent.training.worker.device import device as devices

READY_PARTS = 16
"""Parts of the buffer whose gradients' time is noted."""

MEASURED_CODECS = ("bf16", "int8")

TRIES = 3
"""The fastest of so many counts; the first one allocates."""

SAMPLE_NUMBERS = 8 * CHUNK_NUMBERS
"""Most numbers that an optimizer's step is measured with; a larger model takes as much longer."""


class ReadyTimes:
    """Notes when backward has each gradient, while slices are computed.

    Args:
        parameters: the trained ones, in the order of the buffer.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._sizes = [parameter.numel() for parameter in parameters.values()]
        self._parameters = list(parameters.values())
        self._moments = [0.0] * len(self._parameters)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """While the block is open, and no longer."""
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._note(position))  # type: ignore[no-untyped-call]
            for position, parameter in enumerate(self._parameters)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def curve(self, began: float, ended: float) -> tuple[float, ...]:
        """For each of :data:`READY_PARTS` equal parts of the buffer, which part of the time had passed."""
        total, whole = sum(self._sizes), ended - began
        if not total or whole <= 0:
            return ()
        latest = [0.0] * READY_PARTS
        begin = 0
        for size, moment in zip(self._sizes, self._moments, strict=True):
            first, last = begin * READY_PARTS // total, (begin + max(size, 1) - 1) * READY_PARTS // total
            for part in range(first, min(last, READY_PARTS - 1) + 1):
                latest[part] = max(latest[part], moment)
            begin += size
        return tuple(round(min(1.0, max(0.0, (moment - began) / whole)), 4) for moment in latest)

    def _note(self, position: int) -> Callable[[torch.Tensor], None]:
        def note(_: torch.Tensor) -> None:
            self._moments[position] = time.perf_counter()

        return note


def costs(parameters: Mapping[str, nn.Parameter], device: torch.device, ready: tuple[float, ...]) -> DeviceCosts:
    """Measure.

    Args:
        parameters: the trained ones.
        device: where the model is.
        ready: see :meth:`ReadyTimes.curve`.
    """
    numel = sum(parameter.numel() for parameter in parameters.values())
    update = _adamw_s(numel, torch.device("cpu"))
    own = update if device.type == "cpu" else _adamw_s(numel, device)
    values = torch.linspace(-1, 1, CHUNK_NUMBERS, dtype=torch.float32)
    return DeviceCosts(
        step_s=own * numel,
        update_s=update,
        ready=ready,
        codec_s={name: _codec_s(name, values) for name in MEASURED_CODECS},
    )


def relative_to_adamw(optimizer: torch.optim.Optimizer, numel: int) -> float:
    """Time of the job's optimizer over that of AdamW, on this processor; only its class and options are used.

    Only torch's own are timed: the user's code runs in workers alone, where its crash is survived and explained.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return 1.0
    cpu = torch.device("cpu")
    parameters = _parameters(numel, cpu)
    try:
        step = type(optimizer)(parameters, **optimizer.defaults).step
        return _fastest(step, cpu) / _fastest(torch.optim.AdamW(parameters).step, cpu)
    except Exception:  # noqa: BLE001 - an optimizer of the user's own that is made in another way
        return 1.0


def _adamw_s(numel: int, device: torch.device) -> float:
    """Seconds for a number."""
    parameters = _parameters(numel, device)
    return _fastest(torch.optim.AdamW(parameters).step, device) / sum(each.numel() for each in parameters)


def _parameters(numel: int, device: torch.device) -> list[nn.Parameter]:
    """Up to :data:`SAMPLE_NUMBERS` numbers, cut as the buffer is, each with a gradient."""
    count = max(1, min(numel, SAMPLE_NUMBERS))
    sizes = [min(CHUNK_NUMBERS, count - begin) for begin in range(0, count, CHUNK_NUMBERS)]
    parameters = [nn.Parameter(torch.zeros(size, dtype=torch.float32, device=device)) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return parameters


def _codec_s(name: str, values: torch.Tensor) -> float:
    """Seconds to write and read one number."""
    codec, out = codecs.create(name), torch.empty_like(values)
    return _fastest(lambda: codec.decode(codec.encode(values), out), values.device) / len(values)


def _fastest(action: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(TRIES):
        began = time.perf_counter()
        action()
        devices.synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times)
