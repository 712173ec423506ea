"""TCP of a simulation: connections between hosts, in the place of those of ``wire.connection`` and ``handshake``."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from remote_agent.training.wire import frames
from remote_agent.training.wire.deadlines import CONNECT_S, FRAME_S
from remote_agent.training.wire.errors import ConnectionBroken, ConnectionRefused
from remote_agent.training.wire.frames import Header
from tests.simulation.cluster import Host, SimulatedActor, between
from tests.simulation.kernel import Kernel, Owner, Waiters

TEARS = 0.25
"""How likely it is that a process which is to die while it sends does so before the next frame."""

Sent = tuple[Header | bytes, bytes]


class Connection:
    """One end of a connection, as :class:`~remote_agent.training.wire.connection.Connection` has it.

    Frames arrive whole and in their order; those that are under way when the connection breaks do not.
    """

    _numbers = itertools.count()

    def __init__(self, here: Host, there: Host, owner: Owner | None, token: bytes) -> None:
        self.peer = there.name
        self.bytes_out = self.bytes_in = 0
        self.owner, self.token = owner, token
        self.other: Connection = self
        self._here, self._there, self._kernel = here, there, here.kernel
        self._under_way: deque[Sent | None] = deque()
        self._inbox: deque[Sent] = deque()
        self._payload = b""
        self._waiters = Waiters(here.kernel)
        self._closed = self._ended = self._broken = False
        self._number = next(self._numbers)
        here.connections.add(self)

    def __str__(self) -> str:
        return f"{self._number:09d}"

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def limit(self, seconds: float) -> None:
        """The system's limits are this module's."""

    def close(self) -> None:
        """End the connection: the other end gets what was sent before."""
        if self._closed:
            return
        self._closed = True
        self._here.connections.discard(self)
        self._waiters.wake()
        self._post(None)

    def closed_by_system(self) -> None:
        """Its process ended."""
        self.close()

    def break_off(self) -> None:
        """Both ends are no more, and what was under way is lost."""
        for end in (self, self.other):
            end._closed = end._ended = end._broken = True
            end._here.connections.discard(end)
            end._inbox.clear()
            end._under_way.clear()
            end._waiters.wake()

    def send(self, header: Header | bytes, payload: bytes | bytearray | memoryview = b"") -> None:
        """Send one frame."""
        if self._closed or self._ended:
            raise ConnectionBroken(f"the connection to {self.peer} broke")
        if self._here.tears and self.owner is not None and self._kernel.random.random() < TEARS:
            process: SimulatedActor = self.owner.process
            self._here.tears = False
            process.end()
            self._kernel.wait(None)
        data = bytes(payload)
        self.bytes_out += frames.HEADER_BYTES + len(data)
        self._post((header, data))

    def _post(self, item: Sent | None) -> None:
        if self._broken:
            return
        self._under_way.append(item)
        size = 1 + (len(item[1]) if item is not None else 0)
        between(self._here, self._there, self._arrives, size, self)

    def _arrives(self) -> None:
        if self._broken:
            return
        item = self._under_way.popleft()
        if item is None:
            self.other._ended = True
        else:
            self.other._inbox.append(item)
        self.other._waiters.wake()

    def receive_header(self, *, may_idle: bool = True) -> Header:
        """The next frame's header."""
        header = self._receive(None if may_idle else FRAME_S)
        assert isinstance(header, Header), "the handshake is over"
        return header

    def _receive(self, deadline_s: float | None) -> Header | bytes:
        end = None if deadline_s is None else self._kernel.now + deadline_s
        while not self._inbox or self._closed:
            if self._closed or self._ended:
                raise ConnectionBroken(f"{self.peer} closed the connection")
            if end is not None and self._kernel.now >= end:
                raise ConnectionBroken(f"{self.peer} did not move a frame within {deadline_s:g} s")
            self._waiters.wait(end)
        header, self._payload = self._inbox.popleft()
        self.bytes_in += frames.HEADER_BYTES + len(self._payload)
        return header

    def receive_into(self, buffer: bytearray | memoryview) -> None:
        """Take the frame's payload."""
        memoryview(buffer).cast("B")[:] = self._payload

    def receive_control(self, header: Header) -> bytes:
        """The payload of a frame that carries no numbers."""
        del header
        return self._payload


class Listener:
    """As a listening socket."""

    def __init__(self, network: Wires, host: Host, owner: Owner | None, port: int) -> None:
        self.owner, self._network, self.host = owner, network, host
        self._address = (host.name, port)
        self._waiting: deque[Connection] = deque()
        self._waiters = Waiters(host.kernel)
        self.closed = False

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def put(self, connection: Connection) -> None:
        """A client has connected."""
        self._waiting.append(connection)
        self._waiters.wake()

    def accept(self) -> tuple[Connection, tuple[str, int]]:
        while not self._waiting:
            if self.closed:
                raise OSError("closed")
            self._waiters.wait(None)
        connection = self._waiting.popleft()
        return connection, (connection.peer, 0)

    def shutdown(self, how: int) -> None:
        del how
        self.close()

    def close(self) -> None:
        self.closed = True
        self._waiters.wake()


class Wires:
    """All hosts' ports; what ``link`` and ``listener`` have sockets and the handshake for."""

    SHUT_RDWR, AF_INET, AF_INET6 = 2, 2, 10

    def __init__(self, kernel: Kernel, hosts: dict[str, Host]) -> None:
        self._kernel, self._hosts = kernel, hosts
        self._ports = itertools.count(1)
        self._listeners: dict[tuple[str, int], Listener] = {}

    def create_server(self, address: tuple[str, int], family: int = AF_INET, backlog: int = 0) -> Listener:
        """As ``socket.create_server``."""
        del family, backlog
        host = self._hosts[address[0]]
        listener = Listener(self, host, self._kernel.current.owner, next(self._ports))
        self._listeners[listener.getsockname()] = listener
        return listener

    @staticmethod
    def connection(sock: Connection, peer: str) -> Connection:
        """As the class ``Connection``, over what :meth:`Listener.accept` gave."""
        del peer
        return sock

    @staticmethod
    def accept(connection: Connection, token: bytes) -> None:
        """As ``handshake.accept``."""
        connection.send(token)
        if connection.other.token != token:
            raise ConnectionRefused(f"{connection.peer} does not know this cluster's token")

    def connect(self, address: tuple[str, int], token: bytes) -> Connection:
        """As ``handshake.connect``."""
        owner = self._kernel.current.owner
        assert owner is not None, "a worker is a process"
        here, there = owner.process.host, self._hosts[address[0]]
        waiters, answer = Waiters(self._kernel), list[Any]()

        def answered(connection: Connection | None) -> None:
            answer.append(connection)
            waiters.wake()

        def arrives() -> None:
            listener = self._listeners.get(address)
            if listener is None or listener.closed or (listener.owner is not None and listener.owner.dead):
                between(there, here, lambda: answered(None))
                return
            ours = Connection(here, there, owner, token)
            theirs = Connection(there, here, listener.owner, b"")
            ours.other, theirs.other = theirs, ours
            listener.put(theirs)
            between(there, here, lambda: answered(ours))

        between(here, there, arrives)
        end = self._kernel.now + CONNECT_S
        while not answer and self._kernel.now < end:
            waiters.wait(end)
        if not answer or answer[0] is None:
            raise ConnectionBroken(f"no shard answers at {address[0]}")
        connection: Connection = answer[0]
        try:
            theirs = connection._receive(CONNECT_S)
        except ConnectionBroken:
            connection.close()
            raise
        if theirs != token:
            connection.close()
            raise ConnectionRefused(f"who listens at {address[0]} does not know this cluster's token")
        return connection
