"""Accepts connections, each of which has to prove that it knows the token, and serves each in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from remote_agent.training.wire import handshake
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.deadlines import ACCEPT_PAUSE_S, CLOSE_S
from remote_agent.training.wire.errors import ExchangeError

LOG = logging.getLogger(__name__)

MAX_UNPROVEN = 64
"""Connections without a proof of the token; one more replaces the oldest. A process that knows the token proves it
within milliseconds. Without this limit, silent connections would use all threads and descriptors of this process."""

_BACKLOG = 128


class Listener:
    """Listens from :meth:`start` to :meth:`close`.

    Args:
        host: the address to listen on, at any free port.
        token: the cluster's secret.
        serve: called with each connection that has proved the token; the connection ends when it returns or raises an
            :class:`ExchangeError`.
        name: for threads and the log.

    Attributes:
        address: (host, port) it listens on.

    Raises:
        OSError: it can't listen there.
    """

    def __init__(self, host: str, token: bytes, serve: Callable[[Connection], None], name: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._token, self._serve, self._name = token, serve, name
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}
        self._unproven: dict[Connection, None] = {}
        self._closed = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)

    def start(self) -> None:
        self._accepting.start()

    def close(self) -> None:
        """End all connections and wait for their threads, at most :data:`CLOSE_S` each. Idempotent."""
        with self._lock:
            self._closed.set()
            connections = dict(self._connections)
        with contextlib.suppress(OSError):  # where shutdown does not wake accept, close does
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in connections:
            connection.close()
        for thread in (self._accepting, *connections.values()):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(CLOSE_S)

    def disconnect(self) -> None:
        """End all connections but that of the calling thread; the other sides may connect again."""
        with self._lock:
            for connection, thread in self._connections.items():
                if thread is not threading.current_thread():
                    connection.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._socket.accept()
            except OSError:
                # The caller hung up before we answered, or no descriptor is left, and none may be for long.
                if self._closed.wait(ACCEPT_PAUSE_S):
                    return
                continue
            connection = Connection(sock, f"{peer[0]}:{peer[1]}")
            thread = threading.Thread(
                target=self._run, args=(connection,), name=f"{self._name}-{connection.peer}", daemon=True
            )
            with self._lock:
                if self._closed.is_set():
                    sock.close()
                    return
                self._connections[connection], self._unproven[connection] = thread, None
                if len(self._unproven) > MAX_UNPROVEN:
                    oldest = next(iter(self._unproven))
                    del self._unproven[oldest]
                    oldest.close()
                thread.start()

    def _run(self, connection: Connection) -> None:
        with connection:
            try:
                try:
                    handshake.accept(connection, self._token)
                finally:
                    with self._lock:
                        self._unproven.pop(connection, None)
                self._serve(connection)
            except ExchangeError as error:
                LOG.info("%s: %s", self._name, error)
        with self._lock:
            self._connections.pop(connection, None)
