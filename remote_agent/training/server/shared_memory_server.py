"""Serves a shard through shared memory, with a thread for each worker, and one copy of the weights for all."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from remote_agent.training.server.shard import Shard
from remote_agent.training.wire.codecs import EXACT
from remote_agent.training.wire.deadlines import ACCEPT_PAUSE_S, CLOSE_S, JOIN_S
from remote_agent.training.wire.errors import ExchangeError, MalformedFrame
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.outbox import Frame, Item
from remote_agent.training.wire.shared_memory import memory, messages
from remote_agent.training.wire.shared_memory.messages import SharedMemoryError

_BACKLOG = 64
_MAX_THREADS = 4
_NO_SCRATCH = torch.empty(0, dtype=torch.float32)  # only decoding a lossy codec needs some


class SharedWeights:
    """The weights of the last two steps, in memory that all workers on this computer share; a shard's listener.

    A shard trains on its own copy, so changes of the shared one by a worker's code are overwritten without effect.

    Args:
        weights: the first weights, float32, shape ``(layout.numel,)``.
        step: number of steps in them.

    Raises:
        OSError: there is not enough memory.
    """

    def __init__(self, layout: Layout, weights: Tensor, step: int = 0) -> None:
        self._layout = layout
        self._missing = len(layout.chunks)
        self._step = step
        self._lock = threading.Lock()
        self._readers: list[socket.socket] = []
        pairs = [memory.allocate(layout.numel) for _ in range(2)]
        self.descriptors: tuple[int, ...] = tuple(descriptor for descriptor, _ in pairs)
        self._sides = [side for _, side in pairs]
        self._sides[step % 2].copy_(weights)

    def keep(self, number: int, step: int, weights: Tensor) -> Tensor:
        """Write a chunk's weights after ``step`` to the workers' memory; use it as a shard's ``keep``."""
        chunk = self._layout.chunks[number]
        return self._sides[step % 2][chunk.begin : chunk.end].copy_(weights)

    def put(self, item: Item) -> None:
        """Count a published chunk, which :meth:`keep` has written; after a step's last one, notify all workers."""
        if not isinstance(item, Frame) or item.header.kind is not Kind.WEIGHTS:
            return
        with self._lock:
            self._missing -= 1
            if self._missing:
                return
            self._missing = len(self._layout.chunks)
            self._step = item.header.step
            for reader in self._readers:
                # The thread that receives from a worker sees its end; a worker that does not read misses a step's
                # message.
                with contextlib.suppress(OSError):
                    messages.send(reader, Header(Kind.WEIGHTS, item.header.step))

    def add(self, reader: socket.socket) -> None:
        """Send ``reader`` a message for each complete step from now on; the first has the newest step's number."""
        with self._lock:
            messages.send(reader, Header(Kind.WELCOME, self._step), descriptors=self.descriptors)
            self._readers.append(reader)

    def remove(self, reader: socket.socket) -> None:
        """Send ``reader`` nothing more."""
        with self._lock:
            if reader in self._readers:
                self._readers.remove(reader)

    def close(self) -> None:
        """Release the memory; workers that have mapped it keep it."""
        messages.close(list(self.descriptors))
        self.descriptors = ()


class SharedMemoryServer:
    """Serves a shard that holds the whole buffer to workers on this computer, from :meth:`start` to :meth:`close`.

    Args:
        shard: what is served. Its codecs are for the network: through memory numbers go as they are.
        shared: where the shard keeps its weights.

    Attributes:
        address: where :class:`~remote_agent.training.wire.shared_memory.client.SharedMemoryChannel` finds it.
        failure: why the shard can't go on, or None.
    """

    def __init__(self, shard: Shard, shared: SharedWeights) -> None:
        if len(shard.chunks) != len(shard.layout.chunks):
            raise ValueError("a shared-memory channel serves a shard that holds all chunks")
        self.shard = shard
        self.failure: ExchangeError | None = None
        self.address = f"hetero-tui-{secrets.token_hex(16)}"
        self._signature = EXACT.signature(shard.layout)
        self._shared = shared
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + self.address)
        self._closed = threading.Event()
        # While the last slice is counted the workers wait, so that their cores are free.
        self._helpers = min(_MAX_THREADS, os.cpu_count() or 1, len(shard.chunks)) - 1
        self._pool = ThreadPoolExecutor(max(1, self._helpers), thread_name_prefix="shared-memory-chunks")
        self._threads: dict[socket.socket, threading.Thread] = {}
        self._accepting = threading.Thread(target=self._accept, name="shared-memory-accept", daemon=True)

    def start(self) -> None:
        self.shard.subscribe(self._shared, self.shard.newest_step(), [True] * len(self.shard.chunks))
        self._listener.listen(_BACKLOG)
        self._accepting.start()

    def close(self) -> None:
        """End all connections and wait for their threads, at most :data:`CLOSE_S` each. Idempotent."""
        self._closed.set()
        self.shard.unsubscribe(self._shared)
        for sock in (self._listener, *self._threads):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in (self._accepting, *self._threads.values()):
            thread.join(CLOSE_S)
        self._pool.shutdown()
        self._listener.close()
        self._shared.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                # The caller hung up before we answered, or no descriptor is left, and none may be for long.
                self._closed.wait(ACCEPT_PAUSE_S)
                continue
            thread = threading.Thread(target=self._serve, args=(sock,), name="shared-memory-worker", daemon=True)
            self._threads[sock] = thread
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                try:
                    self._converse(sock, self._join(sock))
                except ExchangeError as error:
                    _tell(sock, error)
                    raise
        except (SharedMemoryError, OSError):
            pass  # this worker's connection is over; the others go on
        except ExchangeError as error:
            if not isinstance(error, MalformedFrame):
                self._fail(error)
        finally:
            self._shared.remove(sock)
            self._threads.pop(sock, None)

    def _join(self, sock: socket.socket) -> Tensor:
        """Check which worker has connected and greet it; returns its gradient's memory."""
        sock.settimeout(JOIN_S)
        messages.check_peer(sock)
        header, signature, descriptors = messages.receive(sock)
        try:
            if header.kind is not Kind.HELLO or signature != self._signature or len(descriptors) != 1:
                raise SharedMemoryError("the worker has another cut of the buffer")
            gradient = memory.attach(descriptors[0], self.shard.layout.numel)
        finally:
            messages.close(descriptors)
        sock.settimeout(None)
        self._shared.add(sock)
        return gradient

    def _converse(self, sock: socket.socket, own: Tensor) -> None:
        """Count the worker's slices as they become ready."""
        while True:
            header, _, descriptors = messages.receive(sock)
            gradient = own
            try:
                if header.kind is not Kind.GRADIENT:
                    raise SharedMemoryError("a worker sent a frame that only shards send")
                if descriptors:
                    gradient = memory.attach(descriptors[0], self.shard.layout.numel)
            finally:
                messages.close(descriptors)
            self._count(header, gradient.view(torch.uint8))

    def _count(self, header: Header, payload: Tensor) -> None:
        """Contribute all chunks of a slice; this thread and those of the pool take one after the other."""
        numbers = iter(self.shard.chunks)
        helping = [self._pool.submit(self._contribute, header, payload, numbers) for _ in range(self._helpers)]
        self._contribute(header, payload, numbers)
        for helper in helping:
            if not helper.cancel():
                helper.result()

    def _contribute(self, header: Header, payload: Tensor, numbers: Iterator[int]) -> None:
        for number in numbers:
            chunk = self.shard.layout.chunks[number]
            self.shard.contribute(
                dataclasses.replace(header, chunk=number), payload[4 * chunk.begin : 4 * chunk.end], _NO_SCRATCH
            )

    def _fail(self, error: ExchangeError) -> None:
        """Send all workers the reason, and end, since the shard's state is invalid."""
        self.failure = error
        for sock in list(self._threads):
            _tell(sock, error)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _tell(sock: socket.socket, error: ExchangeError) -> None:
    """Say why the connection ends, if the worker still listens."""
    with contextlib.suppress(OSError):
        messages.send(sock, Header(Kind.FAILURE), str(error).encode())
