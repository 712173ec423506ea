"""Serves a shard on the network, with two threads for each worker: one receives gradients, one sends weights.

The messages depend on the kind of shard; see the abstract methods of :class:`Service`.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import socket
import threading
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from remote_agent.training.server.held_chunks import HeldChunks
from remote_agent.training.wire import frames, handshake
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.deadlines import ACCEPT_PAUSE_S, CLOSE_S
from remote_agent.training.wire.errors import (
    ConnectionBroken,
    ConnectionRefused,
    ExchangeError,
    FellBehind,
    MalformedFrame,
)
from remote_agent.training.wire.frames import Header, Kind, Reason
from remote_agent.training.wire.outbox import Frame, Outbox

_log = logging.getLogger(__name__)
_BACKLOG = 64

Held = TypeVar("Held", bound=HeldChunks)


class Service(abc.ABC, Generic[Held]):
    """Listens for workers, from :meth:`start` to :meth:`close`; a context manager.

    Args:
        token: the cluster's secret; a worker must prove that it knows it.
        host: the address to listen on.
        port: 0: any free one.

    Attributes:
        address: (host, port) it listens on.
        failure: why the shard can't go on (its optimizer failed), or None.
    """

    def __init__(self, shard: Held, token: bytes, host: str, port: int = 0) -> None:
        self.failure: ExchangeError | None = None
        self.shard, self._token = shard, token
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._strangers = handshake.Strangers()
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}
        self._closed = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name=f"shard-{shard.number}-accept", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self._accepting.start()

    def close(self) -> None:
        """End all connections and wait for their threads, at most :data:`CLOSE_S` each. Idempotent."""
        with self._lock:
            self._closed.set()
            connections = dict(self._connections)
        with contextlib.suppress(OSError):  # where shutdown does not wake accept, close does
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            connection.close()
        for thread in (self._accepting, *connections.values()):
            if thread.is_alive():
                thread.join(CLOSE_S)

    # --- What a kind of shard says -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def _signature(self) -> bytes:
        """The beginning of a worker's HELLO if it has this shard's layout, codecs and kind."""

    @abc.abstractmethod
    def _joined(self, header: Header, held: bytes, outbox: Outbox) -> None:
        """Handle a worker that sent HELLO, with ``held`` after the signature, and got WELCOME."""

    @abc.abstractmethod
    def _contribute(self, header: Header, payload: Tensor, scratch: Tensor, outbox: Outbox) -> None:
        """Count a gradient; ``payload`` and ``scratch`` (float32, the longest chunk) are overwritten afterwards."""

    @abc.abstractmethod
    def _answer(self, header: Header, payload: bytes, outbox: Outbox) -> None:
        """Answer any other frame; raises MalformedFrame."""

    @abc.abstractmethod
    def _send(self, connection: Connection, outbox: Outbox) -> None:
        """Send the items of the outbox until it is closed; raises ConnectionBroken."""

    @abc.abstractmethod
    def _left(self, outbox: Outbox) -> None:
        """Handle a worker that left."""

    # --- Connections -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError:
                # The caller hung up before we answered, or no descriptor is left, and none may be for long.
                if self._closed.wait(ACCEPT_PAUSE_S):
                    return
                continue
            connection = Connection(sock, f"{peer[0]}:{peer[1]}")
            thread = threading.Thread(
                target=self._serve, args=(connection,), name=f"shard-{self.shard.number}-{connection.peer}", daemon=True
            )
            with self._lock:
                if self._closed.is_set():
                    sock.close()
                    return
                self._connections[connection] = thread
                self._strangers.admit(connection)
                thread.start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            try:
                with self._strangers.meeting(connection):
                    handshake.accept(connection, self._token)
                outbox = Outbox(len(self.shard.chunks))
                try:
                    self._welcome(connection, outbox)
                    self._converse(connection, outbox)
                except ConnectionBroken:
                    raise
                except ExchangeError as error:
                    _tell(connection, error)
                    raise
            except ExchangeError as error:
                _log.info("shard %d: %s", self.shard.number, error)
        with self._lock:
            self._connections.pop(connection, None)

    def _welcome(self, connection: Connection, outbox: Outbox) -> None:
        """Check the worker's HELLO and answer it."""
        header = connection.receive_header(may_idle=False)
        if header.kind is not Kind.HELLO:
            raise MalformedFrame(f"a {header.kind.name} frame before HELLO")
        payload = connection.receive_control(header)
        signature = self._signature()
        if payload[: len(signature)] != signature:
            raise ConnectionRefused(
                f"the worker at {connection.peer} has another cut of the buffer, or other codecs",
                hint="workers and shards of one run must come from one configuration",
            )
        if self.failure is not None:
            raise self.failure
        outbox.put(Frame(Header(Kind.WELCOME)))
        self._joined(header, payload[len(signature) :], outbox)

    def _converse(self, connection: Connection, outbox: Outbox) -> None:
        """Receive frames while another thread sends those of the outbox."""
        sending = threading.Thread(
            target=self._sending, args=(connection, outbox), name=f"{threading.current_thread().name}-send", daemon=True
        )
        sending.start()
        buffer = bytearray(4)
        tensor = torch.frombuffer(buffer, dtype=torch.uint8)
        scratch = torch.empty(self.shard.longest, dtype=torch.float32)
        try:
            while True:
                header = connection.receive_header()
                if header.kind is Kind.GRADIENT:
                    size = self.shard.payload_size(header)
                    if header.length != size:
                        raise MalformedFrame(f"{header.length} bytes for a chunk that takes {size}")
                    if size > len(buffer):
                        buffer = bytearray(size)
                        tensor = torch.frombuffer(buffer, dtype=torch.uint8)
                    connection.receive_into(memoryview(buffer)[:size])
                    self._contribute(header, tensor[:size], scratch, outbox)
                else:
                    self._answer(header, connection.receive_control(header), outbox)
        except ConnectionBroken:
            outbox.close()
            raise
        except ExchangeError as error:
            if not isinstance(error, MalformedFrame):
                self._fail(error)
            raise
        finally:
            self._left(outbox)
            outbox.close()
            sending.join(CLOSE_S)

    def _sending(self, connection: Connection, outbox: Outbox) -> None:
        """Send the items of the outbox; a worker with too many waiting items loses its connection."""
        # A broken connection is seen by the receiving thread too, which reports it.
        with contextlib.suppress(ConnectionBroken):
            self._send(connection, outbox)
        if outbox.overflowed:
            connection.close()

    def disconnect(self) -> None:
        """End all connections; the workers connect again."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()

    def _fail(self, error: ExchangeError) -> None:
        """End all connections, since the shard's state is invalid; later connections get the reason."""
        self.failure = error
        with self._lock:
            for connection in self._connections:
                if self._connections[connection] is not threading.current_thread():
                    connection.close()


def _tell(connection: Connection, error: ExchangeError) -> None:
    """Say why the connection ends; best effort, as the other side may not listen any more."""
    reason = Reason.FELL_BEHIND if isinstance(error, FellBehind) else Reason.OTHER
    payload = frames.pack_failure(reason, str(error))
    with contextlib.suppress(ConnectionBroken):
        connection.send(Header(Kind.FAILURE, length=len(payload)), payload)
