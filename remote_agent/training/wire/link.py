"""Connects a worker to one shard, and reconnects when the connection breaks; one thread receives, one sends.

After a reconnect, the worker asks the shard what it has counted, and sends only the rest again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from remote_agent.training.wire import frames, handshake
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.deadlines import CLOSE_S, RECONNECT_PAUSE_MOST_S, RECONNECT_PAUSE_S, RECONNECT_S
from remote_agent.training.wire.errors import (
    ConnectionBroken,
    ExchangeError,
    FellBehind,
    MalformedFrame,
    ShardUnreachable,
)
from remote_agent.training.wire.frames import Header, Kind, Reason
from remote_agent.training.wire.outbox import Frame
from remote_agent.training.wire.steps import Contribution, piece_of


class Worker(Protocol):
    """The interface of a link to its client; the link's threads call it."""

    def hello(self, shard: int) -> tuple[Frame, bool]:
        """The current HELLO frame for the shard, and whether it says that there are weights."""

    def request(self, held: bool) -> Frame | None:
        """The frame that requests whole weights, if needed, after a HELLO with weights (``held``) or without."""

    def contributions(self) -> Sequence[Contribution]:
        """The contributions to the current step."""

    def has(self, step: int, chunk: int) -> bool:
        """Whether the chunk is here at ``step``, so that a gradient for it would be too late."""

    def payload_size(self, header: Header) -> int:
        """The required payload size of a WEIGHTS or WHOLE frame; raises MalformedFrame."""

    def memory(self, header: Header) -> memoryview | None:
        """The memory into which the payload can be received directly."""

    def arrived(self, header: Header) -> None:
        """Take a payload that was received into :meth:`memory`."""

    def take(self, header: Header, payload: Tensor) -> None:
        """Take a WEIGHTS or WHOLE frame; ``payload`` is overwritten afterwards."""

    def take_newest(self, shard: int, step: int) -> None:
        """Take a FETCHED frame."""

    def take_norm(self, shard: int, step: int, part: float) -> None:
        """Take a NORM_PART frame."""

    def fell_behind(self) -> None:
        """Called when the shard no longer has the next weights."""

    def failed(self, error: ExchangeError) -> None:
        """Called when the link has given up."""


class Link:
    """Keeps a connection to shard ``number`` at ``address`` as long as the client lives.

    Args:
        chunks: the shard's chunks, ascending.
        longest: bytes of the longest payload that the shard may send.
        address: (host, port).
        token: the cluster's secret.
    """

    def __init__(
        self, worker: Worker, number: int, chunks: Sequence[int], longest: int, address: tuple[str, int], token: bytes
    ) -> None:
        self.number = number
        self.last_sent = 0.0
        self._worker, self._chunks, self._address, self._token = worker, chunks, address, token
        self._buffer = bytearray(max(4, longest))
        self._tensor = torch.frombuffer(self._buffer, dtype=torch.uint8)
        self._gradients: deque[tuple[Contribution, int]] = deque()
        self._controls: deque[Frame] = deque()
        self._connection: Connection | None = None
        self._wake = threading.Condition()
        self._closed = False
        self._bytes_before = (0, 0)
        self._thread = threading.Thread(target=self._run, name=f"link-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, patience: float = CLOSE_S) -> None:
        """End the connection for good, and wait for the threads up to ``patience`` seconds."""
        with self._wake:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(patience)

    def push(self, contribution: Contribution, chunks: Sequence[int]) -> None:
        """Send these chunks of a gradient, after those that already wait."""
        with self._wake:
            self._gradients.extend((contribution, chunk) for chunk in chunks)
            self._wake.notify_all()

    def forget_gradients(self) -> None:
        """Drop gradients that have not been sent, since their step is over."""
        with self._wake:
            self._gradients.clear()

    def control(self, frame: Frame) -> None:
        """Send a frame before any gradient; without a connection it is dropped."""
        with self._wake:
            if self._connection is not None:
                self._controls.append(frame)
                self._wake.notify_all()

    def bytes_moved(self) -> tuple[int, int]:
        """Bytes (out, in) over all connections so far."""
        with self._wake:
            out, into = self._bytes_before
            now = self._connection
            return (out, into) if now is None else (out + now.bytes_out, into + now.bytes_in)

    # --- Connecting --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        lost_at = time.monotonic()
        pause = RECONNECT_PAUSE_S
        while True:
            welcomed = False
            try:
                with handshake.connect(self._address, self._token) as connection:
                    held = self._open(connection)
                    welcomed = True
                    self._use(connection, held)
            except FellBehind:
                self._worker.fell_behind()
                welcomed = True
            except ConnectionBroken as error:
                if not welcomed and time.monotonic() - lost_at > RECONNECT_S:
                    hint = "look at the host of the shard: is it reachable, does the shard still run?"
                    cause = f"shard {self.number} did not come back within {RECONNECT_S:g} s: {error.cause}"
                    self._worker.failed(ShardUnreachable(cause, hint=hint, host=self._address[0]))
                    return
            except ExchangeError as error:
                error.host = error.host or self._address[0]
                self._worker.failed(error)
                return
            with self._wake:
                if welcomed:
                    lost_at, pause = time.monotonic(), RECONNECT_PAUSE_S
                elif self._wake.wait_for(lambda: self._closed, pause):
                    return
                if self._closed:
                    return
                pause = min(2 * pause, RECONNECT_PAUSE_MOST_S)

    def _open(self, connection: Connection) -> bool:
        """Send HELLO and receive WELCOME; returns whether HELLO said that there are weights here."""
        hello, held = self._worker.hello(self.number)
        connection.send(hello.header, hello.payload)
        header = connection.receive_header(may_idle=False)
        if header.kind is Kind.FAILURE:
            raise _failure(connection.receive_control(header), self._address)
        if header.kind is not Kind.WELCOME:
            raise MalformedFrame(f"a {header.kind.name} frame before WELCOME")
        return held

    def _use(self, connection: Connection, held: bool) -> None:
        """Use the connection until it ends, which raises an exception."""
        with self._wake:
            if self._closed:
                raise ConnectionBroken("the client was closed")
            self._connection = connection
            self._controls.clear()
        # Called without our lock, since the client calls us while it holds its own.
        request = self._worker.request(held)
        if request is not None:
            self.control(request)
        for contribution in self._worker.contributions():
            if contribution.sent.intersection(self._chunks):
                index, part, parts = contribution.piece
                self.control(Frame(Header(Kind.ASK, step=contribution.step, slice=index, part=part, parts=parts)))
        sending = threading.Thread(target=self._send, args=(connection,), name=f"link-{self.number}-send", daemon=True)
        sending.start()
        try:
            while True:
                self._receive(connection)
        finally:
            connection.close()
            with self._wake:
                self._connection = None
                out, into = self._bytes_before
                self._bytes_before = (out + connection.bytes_out, into + connection.bytes_in)
                self._wake.notify_all()
            sending.join(CLOSE_S)

    # --- Sending -----------------------------------------------------------------------------------------------------

    def _send(self, connection: Connection) -> None:
        try:
            while (item := self._next(connection)) is not None:
                if isinstance(item, Frame):
                    connection.send(item.header, item.payload)
                    continue
                contribution, chunk = item
                if self._worker.has(contribution.step, chunk):
                    continue
                header, payload = contribution.frame(chunk)
                contribution.sent.add(chunk)
                connection.send(header, payload)
                self.last_sent = time.monotonic()
        except ConnectionBroken:
            connection.close()  # wakes the receiving thread, which connects again

    def _next(self, connection: Connection) -> Frame | tuple[Contribution, int] | None:
        """Wait for the next item to send; None: this connection is over."""
        with self._wake:
            self._wake.wait_for(lambda: self._controls or self._gradients or self._connection is not connection)
            if self._connection is not connection:
                return None
            return self._controls.popleft() if self._controls else self._gradients.popleft()

    # --- Receiving ---------------------------------------------------------------------------------------------------

    def _receive(self, connection: Connection) -> None:
        header = connection.receive_header()
        if header.kind in (Kind.WEIGHTS, Kind.WHOLE):
            size = self._worker.payload_size(header)
            if header.length != size or header.chunk not in self._chunks:
                raise MalformedFrame(f"{header.length} bytes for a chunk that takes {size}")
            memory = self._worker.memory(header)
            if memory is not None:
                connection.receive_into(memory)
                self._worker.arrived(header)
            else:
                connection.receive_into(memoryview(self._buffer)[:size])
                self._worker.take(header, self._tensor[:size])
            return
        payload = connection.receive_control(header)
        match header.kind:
            case Kind.COUNTED:
                self._resend(header, frames.unpack_bits(payload, len(self._chunks)))
            case Kind.FETCHED:
                self._worker.take_newest(self.number, header.step)
            case Kind.NORM_PART:
                self._worker.take_norm(self.number, header.step, frames.unpack_number(payload))
            case Kind.FAILURE:
                raise _failure(payload, self._address)
            case _:
                raise MalformedFrame(f"a shard sent a {header.kind.name} frame")

    def _resend(self, header: Header, counted: Sequence[bool]) -> None:
        """Queue again the chunks that were sent on an earlier connection and did not arrive."""
        for contribution in self._worker.contributions():
            if (contribution.step, contribution.piece) == (header.step, piece_of(header)):
                lost = [
                    chunk
                    for chunk, arrived in zip(self._chunks, counted, strict=True)
                    if chunk in contribution.sent and not arrived
                ]
                with self._wake:
                    self._gradients.extendleft((contribution, chunk) for chunk in reversed(lost))
                    self._wake.notify_all()


def _failure(payload: bytes, address: tuple[str, int]) -> ExchangeError:
    reason, text = frames.unpack_failure(payload)
    kind = FellBehind if reason is Reason.FELL_BEHIND else ExchangeError
    return kind(text, host=address[0])
