"""Measures what chunks cost beside the link, by an exchange of a host with itself before the first step.

A chunk wakes up a thread of the shard, is added to a sum, which is copied once the optimizer has used it, and goes back
to a thread of the worker. Under other load on the host all of that takes longer, as the steps will.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable

import torch

from remote_agent.planning.sharding import CHUNK_NUMBERS
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.errors import ConnectionBroken
from remote_agent.training.wire.frames import Header, Kind

TURNS = 21
"""Times that each is measured; the median counts: a step meets what is usual, not the best."""

ADDRESS = "127.0.0.1"


def measure() -> tuple[float, float]:
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
