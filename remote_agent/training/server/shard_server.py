"""Serves a shard on the network, with two threads for each worker: one receives gradients, one sends weights."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Self

import torch

from remote_agent.training.server.published_chunks import PublishedChunks
from remote_agent.training.wire import frames
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.deadlines import CLOSE_S
from remote_agent.training.wire.errors import (
    ConnectionBroken,
    ConnectionRefused,
    ExchangeError,
    FellBehind,
    MalformedFrame,
)
from remote_agent.training.wire.frames import Header, Kind, Reason
from remote_agent.training.wire.listener import Listener
from remote_agent.training.wire.outbox import AllFetched, Frame, Outbox, WholeChunk


class ShardServer:
    """Serves a shard, or a relay, to workers, from :meth:`start` to :meth:`close`; a context manager.

    Args:
        token: the cluster's secret; a worker must prove that it knows it.
        host: the address to listen on.

    Attributes:
        address: (host, port) it listens on.
        failure: why the shard can't go on (its optimizer failed), or None.
    """

    def __init__(self, shard: PublishedChunks, token: bytes, host: str) -> None:
        self.failure: ExchangeError | None = None
        self.shard = shard
        self._listener = Listener(host, token, self._serve, f"shard-{shard.number}")
        self.address = self._listener.address

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self._listener.start()

    def close(self) -> None:
        """End all connections; see :meth:`Listener.close`."""
        self._listener.close()

    # --- Connections -------------------------------------------------------------------------------------------------

    def _serve(self, connection: Connection) -> None:
        outbox = Outbox(len(self.shard.chunks))
        try:
            self._welcome(connection, outbox)
            self._converse(connection, outbox)
        except ConnectionBroken:
            raise
        except ExchangeError as error:
            _tell(connection, error)
            raise

    def _welcome(self, connection: Connection, outbox: Outbox) -> None:
        """Check the worker's HELLO and answer it."""
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
        held = payload[len(signature) :]
        if held:
            self.shard.subscribe(outbox, header.step, frames.unpack_bits(held, len(self.shard.chunks)))

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

    def _sending(self, connection: Connection, outbox: Outbox) -> None:
        """Send the items of the outbox; a worker with too many waiting items loses its connection."""
        # A broken connection is seen by the receiving thread too, which reports it.
        with contextlib.suppress(ConnectionBroken):
            self._send(connection, outbox)
        if outbox.overflowed:
            connection.close()

    def _answer(self, header: Header, payload: bytes, outbox: Outbox) -> None:
        match header.kind:
            case Kind.FETCH:
                self.shard.send_whole(outbox)
            case Kind.ASK:
                bits = frames.pack_bits(self.shard.counted(header))
                outbox.put(Frame(dataclasses.replace(header, kind=Kind.COUNTED, length=len(bits)), bits))
            case Kind.NORM_TOTAL:
                self.shard.apply_clipped(header.step, frames.unpack_number(payload))
            case _:
                raise MalformedFrame(f"a worker sent a {header.kind.name} frame")

    def _send(self, connection: Connection, outbox: Outbox) -> None:
        whole_at: dict[int, int] = {}
        while (item := outbox.get()) is not None:
            match item:
                case WholeChunk(chunk):
                    frame = self.shard.whole(chunk)
                    whole_at[chunk] = frame.header.step
                case AllFetched():
                    frame = Frame(Header(Kind.FETCHED, step=self.shard.newest_step()))
                case Frame():
                    frame = item
                    if frame.header.kind is Kind.WEIGHTS and frame.header.step <= whole_at.get(frame.header.chunk, -1):
                        continue  # it is in what was sent whole
            connection.send(frame.header, frame.payload)

    def disconnect(self) -> None:
        """End all connections; the workers connect again."""
        self._listener.disconnect()

    def _fail(self, error: ExchangeError) -> None:
        """End all connections, since the shard's state is invalid; later connections get the reason."""
        self.failure = error
        self.disconnect()


def _tell(connection: Connection, error: ExchangeError) -> None:
    """Say why the connection ends; best effort, as the other side may not listen any more."""
    reason = Reason.FELL_BEHIND if isinstance(error, FellBehind) else Reason.OTHER
    payload = frames.pack_failure(reason, str(error))
    with contextlib.suppress(ConnectionBroken):
        connection.send(Header(Kind.FAILURE, length=len(payload)), payload)
