"""The measurement of links, between threads on this computer; tests/lab and benchmarks use shaped links."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from remote_agent.training.deadlines import LINK_CONNECT_S
from remote_agent.training.shared.link_speed import Address, LinkEnd

SECONDS, NONCE = 0.3, secrets.token_bytes(16)


@pytest.fixture
def ends() -> Iterator[list[tuple[LinkEnd, Address]]]:
    opened = []
    for _ in range(3):
        end = LinkEnd()
        answer = end.link_open()
        assert answer is not None
        address, memory = answer
        assert memory > 0
        opened.append((end, address))
    yield opened
    for end, _ in opened:
        end.link_close()


def transfer(ends: list[tuple[LinkEnd, Address]], to: list[Address]) -> list[float]:
    """All at once, as the actors do it."""
    with ThreadPoolExecutor(len(ends)) as pool:
        calls = [
            pool.submit(end.link_transfer, address, NONCE, SECONDS) for (end, _), address in zip(ends, to, strict=True)
        ]
        return [call.result() for call in calls]


def is_loopback(measure: Callable[[], float]) -> bool:
    """Whether one of some measurements shows loopback's rate: other work makes a transfer slower, and never faster."""
    return any(measure() > 1e6 for _ in range(10))


def test_every_host_sends_and_receives_at_once(ends: list[tuple[LinkEnd, Address]]) -> None:
    (_, first), (_, second), (_, third) = ends
    assert is_loopback(lambda: min(transfer(ends, [second, third, first])))


def test_one_host_sends_while_no_other_does(ends: list[tuple[LinkEnd, Address]]) -> None:
    (sender, _), (receiver, address), _ = ends

    def alone() -> float:
        with ThreadPoolExecutor(2) as pool:
            sending = pool.submit(sender.link_send, address, NONCE, SECONDS)
            received = pool.submit(receiver.link_receive, NONCE, SECONDS).result()
            sending.result()
        return received

    assert is_loopback(alone)


def test_a_stranger_who_connects_is_not_measured(ends: list[tuple[LinkEnd, Address]]) -> None:
    (_, first), (_, second), _ = ends
    with socket.create_connection(first) as stranger, socket.create_connection(first):
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: first\r\n\r\n")
        assert is_loopback(lambda: min(transfer(ends[:2], [second, first])))


def test_a_host_that_nobody_reaches_is_measured_as_nothing_in_bounded_time(
    ends: list[tuple[LinkEnd, Address]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere: Address = closed.getsockname()[:2]
    began = time.monotonic()
    assert transfer(ends[:1], [nowhere]) == [0.0]
    assert time.monotonic() - began < SECONDS + 2 * LINK_CONNECT_S
    found = [ends[0][0].link_reaches([ends[1][1], nowhere]) for _ in range(5)]
    assert 0 < min(there or 0.0 for there, _ in found) < 1
    assert {not_there for _, not_there in found} == {None}
