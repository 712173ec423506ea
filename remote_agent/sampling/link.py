"""Measures the round trip from this machine to the cluster's head."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from remote_agent import deadlines
from remote_agent.host import layout

_TIMES = 2
"""Connections of one measurement; the fastest counts, since a busy machine answers some of them late."""


class HeadLink:
    """Times connections to the head's Ray, which take one round trip each, every few seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._measured = float("-inf")
        self._delay_s: float | None = None

    def read(self) -> float | None:
        """Seconds, as last measured; None on the head, outside a cluster, and while the head does not answer."""
        if time.monotonic() - self._measured >= deadlines.DELAY_EVERY_SECONDS:
            self._delay_s = self._measure()
            self._measured = time.monotonic()
        return self._delay_s

    def _measure(self) -> float | None:
        spec = layout.read_spec(self._folder)
        if spec is None or spec.role == "head":
            return None
        try:
            family, kind, number, _, address = socket.getaddrinfo(
                spec.head_address, spec.gcs_port, type=socket.SOCK_STREAM
            )[0]
            times = []
            for _ in range(_TIMES):
                with socket.socket(family, kind, number) as connection:
                    connection.settimeout(deadlines.DELAY_SECONDS)
                    began = time.perf_counter()
                    connection.connect(address)
                    times.append(time.perf_counter() - began)
        except OSError:
            return None
        return min(times)
