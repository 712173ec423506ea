"""Measures the links between the run's hosts before the first step, by short transfers over plain TCP.

In each round every host sends to another and receives from a third, all at once, as in a step. Round ``r`` pairs each
host with the one ``r`` places on, so that a slow partner hides a fast link in one round at most; a host's best counts.
For a plan each also sends while no other does: what links share shows in the difference (``planning.media``).
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import psutil
import ray

from remote_agent.training.deadlines import LINK_ALONE_S, LINK_ANSWER_S, LINK_CONNECT_S, LINK_NONCE_S, LINK_S
from remote_agent.training.errors import PlacementError
from remote_agent.training.shared import rpc
from remote_agent.training.shared.rpc import Actor, Ref

MAX_ROUNDS = 3

MAX_ALONE = 8
"""Of more hosts none sends alone, one after the other: it would take too long."""

CONNECTIONS = 3
"""Connections that a latency is taken from."""

_SETTLING = 0.3
"""Part of a transfer that is not counted: buffers fill, and TCP finds the link's rate."""

_PIECE = 1 << 16
_NONCE_BYTES = 16
_BACKLOG = 64

Address = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LinkRates:
    """What was found out about one host.

    Attributes:
        up: bytes/s that it sent; 0 where nothing could be sent.
        down: bytes/s that it received.
        memory: bytes that are free there.
        reachable: every other host could connect to it.
        latency_s: until it was connected with the furthest of the others: a message there and back.
        at_once: bytes/s that it sent to the next host, and received from the one before, in the first round.
        alone: bytes/s that it sent to the next one while no other host did; 0: it was not measured.
    """

    up: float
    down: float
    memory: int
    reachable: bool
    latency_s: float = 0.0
    at_once: tuple[float, float] = (0.0, 0.0)
    alone: float = 0.0


class LinkEnd:
    """What an actor does in the measurement; workers and parameter servers inherit it."""

    _listener: socket.socket | None = None

    def link_open(self) -> tuple[Address, int] | None:
        """Listen. Returns where, and how many bytes of memory are free on this host; None: it can't listen."""
        own = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        try:
            self._listener = socket.create_server((own, 0), family=family, backlog=_BACKLOG)
        except OSError:
            return None
        host, port = self._listener.getsockname()[:2]
        return (host, port), int(psutil.virtual_memory().available)

    def link_reaches(self, addresses: Sequence[Address]) -> tuple[float | None, ...]:
        """Seconds until this host is connected with each of the addresses; None: it can't connect to it."""
        return tuple(_connects(address) for address in addresses)

    def link_transfer(self, to: Address, nonce: bytes, seconds: float) -> float:
        """Send to one host for ``seconds`` while another sends here. Returns bytes/s received; 0: nothing came."""
        assert self._listener is not None, "link_open was called"
        sending = threading.Thread(target=_send, args=(to, nonce, seconds), name="link-send", daemon=True)
        sending.start()
        try:
            return _receive(self._listener, nonce, seconds)
        finally:
            sending.join(seconds + 2 * LINK_CONNECT_S)

    def link_send(self, to: Address, nonce: bytes, seconds: float) -> None:
        """Send to one host, which receives for ``seconds``."""
        _send(to, nonce, seconds)

    def link_receive(self, nonce: bytes, seconds: float) -> float:
        """Receive for ``seconds``. Returns bytes/s; 0: nothing came."""
        assert self._listener is not None, "link_open was called"
        return _receive(self._listener, nonce, seconds)

    def link_close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def survey(hosts: Sequence[str], actors: Sequence[Actor], *, alone: bool = False) -> tuple[LinkRates, ...]:
    """Measure the links between hosts, within :data:`LINK_ANSWER_S` a question.

    Args:
        hosts: their names, two or more.
        actors: one :class:`LinkEnd` on each.
        alone: what each host sends alone, too, if there are no more than :data:`MAX_ALONE`.

    Raises:
        PlacementError: an actor was lost.
    """
    opened = _ask(hosts, [actor.call("link_open") for actor in actors])
    for host, answer in zip(hosts, opened, strict=True):
        if answer is None:
            raise PlacementError("no port can be opened there", hint="look at the host's addresses", host=host)
    addresses = [address for address, _ in opened]
    seen = _ask(hosts, [actor.call("link_reaches", addresses) for actor in actors])
    count, nonce = len(hosts), secrets.token_bytes(_NONCE_BYTES)
    up, down = [0.0] * count, [0.0] * count
    rounds: list[list[float]] = []
    for distance in range(1, min(MAX_ROUNDS, count - 1) + 1):
        partners = [(position + distance) % count for position in range(count)]
        calls = [
            actor.call("link_transfer", addresses[to], nonce, LINK_S)
            for actor, to in zip(actors, partners, strict=True)
        ]
        received = _ask(hosts, calls)
        rounds.append(received)
        for sender, receiver in enumerate(partners):
            up[sender] = max(up[sender], received[receiver])
            down[receiver] = max(down[receiver], received[receiver])
    by_itself = [0.0] * count
    for position in range(count if alone and count <= MAX_ALONE else 0):
        to = (position + 1) % count
        if seen[position][to] is None:
            continue
        calls = [actors[to].call("link_receive", nonce, LINK_ALONE_S)]
        actors[position].call("link_send", addresses[to], nonce, LINK_ALONE_S)
        (by_itself[position],) = _ask(hosts[to : to + 1], calls)
    for actor in actors:
        actor.call("link_close")
    return tuple(
        LinkRates(
            up=up[position],
            down=down[position],
            memory=memory,
            reachable=all(others[position] is not None for others in seen),
            latency_s=max((each for each in seen[position] if each is not None), default=0.0),
            at_once=(rounds[0][(position + 1) % count], rounds[0][position]),
            alone=by_itself[position],
        )
        for position, (_, memory) in enumerate(opened)
    )


def _ask(hosts: Sequence[str], calls: Sequence[Ref[T]]) -> list[T]:
    deadline = time.monotonic() + LINK_ANSWER_S
    failure, hint = "its link could not be measured", "look at the host, or set shards=1"
    return [
        rpc.get_at_start(call, max(0.0, deadline - time.monotonic()), failure, hint=hint, host=host)
        for host, call in zip(hosts, calls, strict=True)
    ]


def _connects(address: Address) -> float | None:
    """Seconds that it took, the shortest of :data:`CONNECTIONS`."""
    times = []
    for _ in range(CONNECTIONS):
        began = time.monotonic()
        try:
            socket.create_connection(address, timeout=LINK_CONNECT_S).close()
        except OSError:
            return None
        times.append(time.monotonic() - began)
    return min(times)


def _send(to: Address, nonce: bytes, seconds: float) -> None:
    """Send for ``seconds``, or until the other side has enough."""
    payload = bytes(_PIECE)
    # The other side ends the connection in the middle of a piece; a host that can't be reached is measured as 0.
    with contextlib.suppress(OSError), socket.create_connection(to, timeout=LINK_CONNECT_S) as sock:
        sock.sendall(nonce)
        end = time.monotonic() + seconds + LINK_CONNECT_S
        while (left := end - time.monotonic()) > 0:
            sock.settimeout(left)
            sock.sendall(payload)


def _receive(listener: socket.socket, nonce: bytes, seconds: float) -> float:
    """Bytes/s that come in over ``seconds`` from the connection that knows the nonce."""
    end = time.monotonic() + seconds + LINK_CONNECT_S
    buffer = bytearray(_PIECE)
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(OSError):  # an attempt to connect that was only that, or a stranger
            listener.settimeout(left)
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(min(left, LINK_NONCE_S))
                if hmac.compare_digest(sock.recv(len(nonce), socket.MSG_WAITALL), nonce):
                    return _rate(sock, seconds, buffer)
    return 0.0


def _rate(sock: socket.socket, seconds: float, buffer: bytearray) -> float:
    begun = now = counted_from = time.monotonic()
    count = 0
    with contextlib.suppress(TimeoutError):
        while (left := begun + seconds - now) > 0:
            sock.settimeout(left)
            received = sock.recv_into(buffer)
            if not received:
                break
            now = time.monotonic()
            if now < begun + _SETTLING * seconds:
                counted_from = now
            else:
                count += received
    return count / (now - counted_from) if count else 0.0
