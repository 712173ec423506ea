"""A shard on the network: two threads for each worker, one that receives gradients and one that sends weights."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from types import TracebackType
from typing import Self

import torch

from remote_agent.training.exchange import frames, handshake
from remote_agent.training.exchange.connection import Connection
from remote_agent.training.exchange.deadlines import CLOSE_S
from remote_agent.training.exchange.errors import (
    ConnectionBroken,
    ConnectionRefused,
    ExchangeError,
    FellBehind,
    MalformedFrame,
)
from remote_agent.training.exchange.frames import Header, Kind, Reason
from remote_agent.training.exchange.outbox import AllFetched, Frame, Outbox, WholeChunk
from remote_agent.training.exchange.shard import Shard

_log = logging.getLogger(__name__)
_BACKLOG = 64


class ShardServer:
    """Listens for workers, from :meth:`start` to :meth:`close`; a context manager.

    Args:
        shard: what is served.
        token: the cluster's secret; a worker must prove that it knows it.
        host: the address to listen on.
        port: 0: any free one.

    Attributes:
        address: (host, port) it listens on.
        failure: why the shard can't go on (its optimizer failed), or None.
    """

    def __init__(self, shard: Shard, token: bytes, host: str, port: int = 0) -> None:
        self.shard = shard
        self.failure: ExchangeError | None = None
        self._token = token
        self._listener = socket.create_server((host, port), backlog=_BACKLOG)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._lock = threading.Lock()
        self._connections: dict[Connection, threading.Thread] = {}
        self._closed = False
        self._longest = max((shard.layout.chunks[chunk].numel for chunk in shard.chunks), default=0)
        self._accepting = threading.Thread(target=self._accept, name=f"shard-{shard.number}-accept", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Serve."""
        self._accepting.start()

    def close(self) -> None:
        """End all connections and wait for their threads, at most :data:`CLOSE_S` each. Idempotent."""
        with self._lock:
            self._closed = True
            connections = dict(self._connections)
        with contextlib.suppress(OSError):  # where shutdown does not wake accept, close does
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            connection.close()
        for thread in (self._accepting, *connections.values()):
            if thread.is_alive():
                thread.join(CLOSE_S)

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                continue  # the caller hung up before we answered
            connection = Connection(sock, f"{peer[0]}:{peer[1]}")
            thread = threading.Thread(
                target=self._serve, args=(connection,), name=f"shard-{self.shard.number}-{connection.peer}", daemon=True
            )
            with self._lock:
                if self._closed:
                    sock.close()
                    return
                self._connections[connection] = thread
                thread.start()

    def _serve(self, connection: Connection) -> None:
        """One worker, until its connection ends."""
        with connection:
            try:
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
        """Check the worker's HELLO, answer it and subscribe its outbox."""
        header = connection.receive_header(may_idle=False)
        if header.kind is not Kind.HELLO:
            raise MalformedFrame(f"a {header.kind.name} frame before HELLO")
        payload = connection.receive_control(header)
        signature = self.shard.codecs.signature(self.shard.layout)
        if payload[: len(signature)] != signature:
            raise ConnectionRefused(
                f"the worker at {connection.peer} has another cut of the buffer, or other codecs",
                hint="workers and shards of one run must come from one configuration",
            )
        if self.failure is not None:
            raise self.failure
        outbox.put(Frame(Header(Kind.WELCOME)))
        if len(payload) > len(signature):
            held = frames.unpack_bits(payload[len(signature) :], len(self.shard.chunks))
            self.shard.subscribe(outbox, header.step, held)

    def _converse(self, connection: Connection, outbox: Outbox) -> None:
        """Receive frames while another thread sends those of the outbox."""
        sending = threading.Thread(
            target=self._send, args=(connection, outbox), name=f"{threading.current_thread().name}-send", daemon=True
        )
        sending.start()
        buffer = bytearray(max(4, self.shard.codecs.gradients.size(self._longest)))
        tensor = torch.frombuffer(buffer, dtype=torch.uint8)
        scratch = torch.empty(self._longest)
        try:
            while True:
                header = connection.receive_header()
                if header.kind is Kind.GRADIENT:
                    size = self.shard.payload_size(header)
                    if header.length != size:
                        raise MalformedFrame(f"{header.length} bytes for a chunk that takes {size}")
                    connection.receive_into(memoryview(buffer)[:size])
                    self.shard.contribute(header, tensor[:size], scratch)
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
            self.shard.unsubscribe(outbox)
            outbox.close()
            sending.join(CLOSE_S)

    def _answer(self, header: Header, payload: bytes, outbox: Outbox) -> None:
        match header.kind:
            case Kind.FETCH:
                self.shard.send_whole(outbox)
            case Kind.ASK:
                bits = frames.pack_bits(self.shard.counted(header.step, header.slice))
                answer = Header(Kind.COUNTED, step=header.step, slice=header.slice, length=len(bits))
                outbox.put(Frame(answer, bits))
            case Kind.NORM_TOTAL:
                self.shard.apply_clipped(header.step, frames.unpack_number(payload))
            case _:
                raise MalformedFrame(f"a worker sent a {header.kind.name} frame")

    def _send(self, connection: Connection, outbox: Outbox) -> None:
        """Send what the outbox gives. A worker for which too much is waiting loses its connection."""
        whole_at: dict[int, int] = {}
        try:
            while (item := outbox.get()) is not None:
                match item:
                    case WholeChunk(chunk):
                        frame = self.shard.whole(chunk)
                        whole_at[chunk] = frame.header.step
                    case AllFetched():
                        frame = Frame(Header(Kind.FETCHED, step=self.shard.newest_step()))
                    case Frame():
                        frame = item
                        if frame.header.kind is Kind.WEIGHTS and frame.header.step <= whole_at.get(
                            frame.header.chunk, -1
                        ):
                            continue  # it is in what was sent whole
                connection.send(frame.header, frame.payload)
        except ConnectionBroken:
            pass  # the receiving thread sees it too, and reports it
        finally:
            if outbox.overflowed:
                connection.close()

    def _fail(self, error: ExchangeError) -> None:
        """The shard's state is not to be trusted any more: end all connections, and say why to who comes again."""
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
