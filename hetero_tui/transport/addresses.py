"""One of several addresses of a name: the first that answers, as RFC 8305 (Happy Eyeballs) has it.

A name often has an IPv6 address that leads nowhere beside an IPv4 one that works. Where packets to it are dropped, one
address after the other would take minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

HEAD_START = 0.3
"""Seconds that an address has before the next one is tried as well."""


async def first_to_answer(host: str, port: int, family: int = 0) -> socket.socket | None:
    """A TCP connection to the address of ``host`` that answers first; None where there is but one, or none answers.

    Raises:
        OSError: the name can't be resolved.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    if len(found) < 2:
        return None
    tasks = [asyncio.create_task(_attempt(number * HEAD_START, *found[number])) for number in range(len(found))]
    winner: socket.socket | None = None
    try:
        for task in asyncio.as_completed(tasks):
            with contextlib.suppress(OSError):
                winner = await task
                return winner
        return None
    finally:
        for each in tasks:
            each.cancel()
        await _close(tasks, winner)


async def _attempt(
    pause: float, family: int, kind: int, protocol: int, _: str, address: tuple[object, ...]
) -> socket.socket:
    await asyncio.sleep(pause)
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _close(tasks: Sequence[asyncio.Task[socket.socket]], winner: socket.socket | None) -> None:
    """Close the connections that came second."""
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, socket.socket) and outcome is not winner:
            outcome.close()
