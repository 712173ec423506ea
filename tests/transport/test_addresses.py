"""Of several addresses of a name, one that works is found soon, whatever the others do."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from hetero_tui.transport import connection as addresses

V4 = "127.0.0.1"


def info(address: str, port: int) -> tuple[object, ...]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return (family, socket.SOCK_STREAM, 6, "", (address, port))


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server((V4, 0)) as server:
        yield server


@pytest.fixture
def full() -> Iterator[int]:
    """The port of a server whose backlog is full: no further connection is answered, as behind a firewall."""
    with socket.create_server((V4, 0), backlog=0) as server:
        port = server.getsockname()[1]
        waiting = []
        for _ in range(8):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex((V4, port))
        yield port
        for each in waiting:
            each.close()


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch):
    def to(*found: tuple[object, ...]) -> None:
        async def getaddrinfo(*_: object, **__: object) -> list[tuple[object, ...]]:
            return [*found]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)

    return to


async def test_an_address_that_never_answers_does_not_hold_up_the_next(server, full, resolve):
    resolve(info(V4, full), info(V4, server.getsockname()[1]))
    began = time.monotonic()
    async with asyncio.timeout(10):
        found = await addresses.first_to_answer("nas", 22)
    assert time.monotonic() - began >= addresses.HEAD_START
    assert found is not None
    with found:
        assert found.getpeername() == server.getsockname()


async def test_of_two_that_answer_one_is_kept_and_the_other_closed(server, resolve, monkeypatch):
    monkeypatch.setattr(addresses, "HEAD_START", 0.0)
    resolve(*[info(V4, server.getsockname()[1])] * 2)
    found = await addresses.first_to_answer("nas", 22)
    assert found is not None
    ends = {}
    for _ in range(2):
        accepted, peer = server.accept()
        ends[peer] = accepted
    kept = ends.pop(found.getsockname())
    (closed,) = ends.values()
    closed.settimeout(5)
    assert closed.recv(1) == b""
    for each in (found, kept, closed):
        each.close()
