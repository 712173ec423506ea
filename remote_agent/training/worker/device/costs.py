"""Measures a step's costs beside forward and backward: the optimizer's step, codecs, and when gradients are ready.

Measured before the first step, for the planner. What is measured here changes nothing of the model: optimizers work on
numbers of their own. Devices measure AdamW, the coordinator how the job's own optimizer compares with that.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from remote_agent.planning.blocks import LOSSY
from remote_agent.planning.sharding import CHUNK_NUMBERS
from remote_agent.training.shared.messages import DeviceCosts
from remote_agent.training.wire import codecs
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.errors import ConnectionBroken
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.worker.device import device as devices

READY_PARTS = 16
"""Parts of the buffer whose gradients' time is noted."""

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
    """Measure; ``ready``: see :meth:`ReadyTimes.curve`."""
    numel = sum(parameter.numel() for parameter in parameters.values())
    update = _adamw_s(_chunks(numel, torch.device("cpu")), torch.device("cpu"))
    own = _adamw_s(_shaped(parameters, device), device)  # many small tensors take longer than few large ones
    values = torch.linspace(-1, 1, CHUNK_NUMBERS, dtype=torch.float32)
    turn_s, touch_s = chunk_costs()
    return DeviceCosts(
        turn_s=turn_s,
        touch_s=touch_s,
        step_s=own * numel,
        update_s=update,
        ready=ready,
        codec_s={name: _codec_s(name, values) for name in LOSSY},
    )


def relative_to_adamw(optimizer: torch.optim.Optimizer, numel: int) -> float:
    """Time of the job's optimizer over that of AdamW, on this processor; only its class and options are used.

    Only torch's own are timed: the user's code runs in workers alone, where its crash is survived and explained.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return 1.0
    cpu = torch.device("cpu")
    parameters = _chunks(numel, cpu)
    try:
        step = type(optimizer)(parameters, **optimizer.defaults).step
        return _fastest(step, cpu) / _fastest(torch.optim.AdamW(parameters).step, cpu)
    except Exception:  # noqa: BLE001 - an optimizer of the user's own that is made in another way
        return 1.0


def _adamw_s(parameters: list[nn.Parameter], device: torch.device) -> float:
    """Seconds for a number of these parameters."""
    return _fastest(torch.optim.AdamW(parameters).step, device) / max(1, sum(each.numel() for each in parameters))


def _chunks(numel: int, device: torch.device) -> list[nn.Parameter]:
    """Up to :data:`SAMPLE_NUMBERS` numbers, cut as the buffer is, each with a gradient."""
    count = max(1, min(numel, SAMPLE_NUMBERS))
    sizes = [min(CHUNK_NUMBERS, count - begin) for begin in range(0, count, CHUNK_NUMBERS)]
    return [_parameter((size,), device) for size in sizes]


def _shaped(parameters: Mapping[str, nn.Parameter], device: torch.device) -> list[nn.Parameter]:
    """Up to :data:`SAMPLE_NUMBERS` numbers in the shapes that they have, each with a gradient."""
    found: list[nn.Parameter] = []
    left = SAMPLE_NUMBERS
    for parameter in parameters.values():
        whole = parameter.numel() <= left
        found.append(_parameter(tuple(parameter.shape) if whole else (left,), device))
        left -= found[-1].numel()
        if not left:
            break
    return found or _chunks(0, device)


def _parameter(shape: tuple[int, ...], device: torch.device) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(shape, dtype=torch.float32, device=device))
    made.grad = torch.full_like(made, 1e-3)
    return made


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


# --- What chunks cost beside the link --------------------------------------------------------------------------------

# A chunk wakes up a thread of the shard, is added to a sum, which is copied once the optimizer has used it, and goes
# back to a thread of the worker. Under other load on the host all of that takes longer, as the steps will.


TURNS = 21
"""Times that each is measured; the median counts: a step meets what is usual, not the best."""

ADDRESS = "127.0.0.1"


def chunk_costs() -> tuple[float, float]:
    """Seconds of a chunk of one number there and back, and for each number of a chunk that is summed and copied."""
    with socket.create_server((ADDRESS, 0)) as listener:
        near = socket.create_connection(listener.getsockname()[:2])
        far, _ = listener.accept()
    with Connection(near, "itself") as worker:
        shard = threading.Thread(target=_serve, args=(far,), name="measured-shard", daemon=True)
        shard.start()
        payload, into = bytes(4), bytearray(4)
        header = Header(Kind.GRADIENT, length=4)

        def turn() -> None:
            worker.send(header, payload)
            worker.receive_header()
            worker.receive_into(into)

        turn_s = _median(turn)
    shard.join()
    chunk, total = torch.zeros(CHUNK_NUMBERS), torch.zeros(CHUNK_NUMBERS)
    return turn_s, _median(lambda: total.add_(chunk).clone()) / CHUNK_NUMBERS


def _median(action: Callable[[], object]) -> float:
    times = []
    for _ in range(TURNS):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _serve(sock: socket.socket) -> None:
    """Send back what comes, until the other end closes."""
    buffer = bytearray(4)
    with Connection(sock, "itself") as connection:
        try:
            while True:
                header = connection.receive_header()
                connection.receive_into(buffer)
                connection.send(header, buffer)
        except ConnectionBroken:
            return
