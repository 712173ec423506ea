"""Listens to all that goes over the lab's switch, and counts what was looked for: run in the switch's name space.

``python -m tests.lab.wiretap NEEDLE...`` (hexadecimal) prints a line once it listens, and on SIGTERM one JSON object:
``bytes`` heard, packets that the kernel ``lost``, and ``found``, the number of packets that hold each needle.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tests.lab import network
from tests.lab.lab import Lab

_ALL_PROTOCOLS = 3
_PACKET, _STATISTICS = 263, 6
_FORCED_BUFFER, _BUFFER_BYTES = 33, 256 << 20
_LONGEST = 1 << 17
END_S = 30.0


class Wiretap:
    """A tap on the lab's switch, as a context manager; :meth:`end` gives what was heard."""

    def __init__(self, lab: Lab, needles: Sequence[bytes]) -> None:
        command = [sys.executable, "-m", "tests.lab.wiretap", *(needle.hex() for needle in needles)]
        switch = f"{lab.id}-{network.BRIDGE}"
        self._process = subprocess.Popen(["ip", "netns", "exec", switch, *command], stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(END_S)

    def end(self) -> dict[str, Any]:
        """Stop listening."""
        self._process.terminate()
        said, _ = self._process.communicate(timeout=END_S)
        heard: dict[str, Any] = json.loads(said)
        return heard


def main() -> None:
    """See the module's docstring."""
    needles = [bytes.fromhex(word) for word in sys.argv[1:]]
    found, heard = dict.fromkeys(sys.argv[1:], 0), 0
    buffer = memoryview(bytearray(_LONGEST))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, _FORCED_BUFFER, _BUFFER_BYTES)
        print("listening", flush=True)
        try:
            while True:
                count = tap.recv_into(buffer)
                heard += count
                packet = bytes(buffer[:count])
                for word, needle in zip(found, needles, strict=True):
                    found[word] += needle in packet
        except KeyboardInterrupt:
            _, lost = struct.unpack("II", tap.getsockopt(_PACKET, _STATISTICS, 8))
    print(json.dumps({"bytes": heard, "lost": lost, "found": list(found.values())}), flush=True)


if __name__ == "__main__":
    main()
