"""What a stranger on the network can send to the ports of a cluster: run on a host of the lab that is not in it.

It reads ``{"doors": [[address, port], ...], "methods": [...], "seconds": S}`` from stdin and tries at every port:
calls of these gRPC methods and, unless S is 0, bytes of many kinds and thousands of connections that say nothing for
S seconds. It prints what came back: ``[address, port, what, text]``, for a call the status that it ended with, or
``OK`` and its reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import resource
import ssl
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SILENT = 3000
NOISE_BYTES = 1 << 20
FRAMES = {
    "our frames": b"HTXG\x01" + bytes(range(32)) + bytes(32),
    "a frame without a handshake": bytes(64),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "an API of Ray's jobs": b"GET /api/jobs/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "pickle": b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
    "torch's store": b"\x00\x00\x00\x00\x00\x00\x00\x00" + bytes(32),
}
PROGRAMS = ("core/src/ray/gcs/gcs_server", "core/src/ray/raylet/raylet", "_raylet.so")
KILLS = "/ray.rpc.syncer.RaySyncer/StartSync"
"""In Ray 2.60 this method ends the process before the token is looked at, where TLS lets somebody in as far as that."""

UNDER_TLS = "HTTP/2 under TLS, without a certificate"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


def methods() -> list[str]:
    """Every gRPC method that the Ray of this Python has, from its own programs."""
    import ray

    folder = Path(ray.__file__).parent
    found: set[bytes] = set()
    for program in PROGRAMS:
        found |= set(re.findall(rb"(/(?:ray|grpc)\.[\w.]+/\w+)\x00", (folder / program).read_bytes()))
    for path in (folder / "core/generated").glob("*_pb2_grpc.py"):
        found |= set(re.findall(rb"'(/ray\.[\w.]+/\w+)'", path.read_bytes()))
    return sorted(method.decode() for method in found)


def anonymous() -> ssl.SSLContext:
    """A client that trusts everybody, and has nothing to show."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def send(address: str, port: int, data: bytes, seconds: float, context: ssl.SSLContext | None = None) -> bytes:
    """What is answered to these bytes."""
    reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port, ssl=context), seconds)
    try:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            writer.write(data)
            await asyncio.wait_for(writer.drain(), seconds)
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return await asyncio.wait_for(reader.read(4096), seconds)
        return b""
    finally:
        writer.close()


async def talk(doors: list[tuple[str, int]], answers: list[list[Any]]) -> None:
    """Send everything that is no gRPC."""
    everything = {**FRAMES, "1 MB of noise": random.Random(1).randbytes(NOISE_BYTES)}

    everything[UNDER_TLS] = HTTP2

    async def one(address: str, port: int, what: str, data: bytes) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            said = await send(address, port, data, 1.5, anonymous() if what == UNDER_TLS else None)
            answers.append([address, port, what, said.decode("latin-1")])

    await asyncio.gather(*(one(*door, what, data) for what, data in everything.items() for door in doors))


async def be_silent(doors: list[tuple[str, int]], seconds: float) -> int:
    """Keep thousands of connections that say nothing; how many were made."""
    made: list[asyncio.StreamWriter] = []

    async def one(address: str, port: int) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), 5)
            made.append(writer)

    for begin in range(0, SILENT, 200):
        await asyncio.gather(*(one(*doors[number % len(doors)]) for number in range(begin, begin + 200)))
    await asyncio.sleep(seconds)
    for writer in made:
        writer.close()
    return len(made)


def call_all(address: str, port: int, names: list[str], answers: list[list[Any]]) -> int:
    """Call the methods, each with an empty body and with a wrong one; how many calls were made."""
    import grpc

    with grpc.insecure_channel(f"{address}:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=3)
        except grpc.FutureTimeoutError:
            return 0
        for name in names:
            for body in (b"", b"\x0a\x05hello\x10\x01"):
                call = channel.stream_stream(name)
                try:
                    for reply in call(iter([body]), timeout=2):
                        answers.append([address, port, name, f"OK {reply.decode('latin-1')}"])
                        break
                except grpc.RpcError as error:
                    answers.append([address, port, name, error.code().name])  # type: ignore[attr-defined]
        return 2 * len(names)


def main() -> None:
    """See the module's docstring."""
    asked = json.loads(sys.stdin.read())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.environ["GRPC_VERBOSITY"] = "NONE"
    doors = [(str(address), int(port)) for address, port in asked["doors"]]
    answers: list[list[Any]] = []
    names = asked["methods"]
    began = time.monotonic()
    with ThreadPoolExecutor(max(1, len(doors))) as pool:  # most of their time they wait
        calls = sum(pool.map(lambda door: call_all(*door, names, answers), doors))
    grpc_seconds, silent = time.monotonic() - began, 0
    if asked["seconds"]:
        asyncio.run(talk(doors, answers))
        silent = asyncio.run(be_silent(doors, asked["seconds"]))
    print(json.dumps({"answers": answers, "calls": calls, "silent": silent, "seconds": grpc_seconds}))


if __name__ == "__main__":
    main()
