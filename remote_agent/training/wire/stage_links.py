"""Connects the stages of a pipeline: sends and receives tensors of any shape and dtype, beside computing.

Each stage listens, and connects to the earlier stages with which it exchanges data. A message is one TENSORS frame
(:mod:`frames`): ``step``, ``slice`` (the micro-batch, or the number of a shared parameter), ``chunk`` (its
:class:`Purpose`), and a payload: a description of the tensors and, aligned to :data:`_ALIGNMENT`, their numbers in the
machine's byte order. So lengths may change from batch to batch. A codec may encode activations and gradients. Outgoing
messages wait in a queue for the sending thread; received ones wait, by their name, for the computing thread.
"""

from __future__ import annotations

import contextlib
import enum
import queue
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from remote_agent.training.wire import handshake
from remote_agent.training.wire.codecs import Codec
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.deadlines import ACCEPT_PAUSE_S, CLOSE_S, RECONNECT_S, STEP_S
from remote_agent.training.wire.errors import ConnectionBroken, ExchangeError, MalformedFrame
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.listener import Listener

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
_NONE, _CODED = 255, 128
_COUNT, _TENSOR, _SIZE = struct.Struct("!I"), struct.Struct("!BB"), struct.Struct("!Q")
_ALIGNMENT = 64
_MAX_BYTES = (1 << 32) - 1


class Purpose(enum.IntEnum):
    """The purpose of a message's tensors."""

    HELLO = 0
    ACTIVATIONS = 1
    GRADIENTS = 2
    SHARED_GRADIENT = 3
    SHARED_WEIGHTS = 4
    EVALUATED = 5


_COMPUTED = frozenset({Purpose.ACTIVATIONS, Purpose.GRADIENTS})


class Name(NamedTuple):
    """The name of a message: the other stage, the purpose, the step and the micro-batch."""

    peer: int
    purpose: Purpose
    step: int
    number: int


Tensors = tuple[Tensor | None, ...]


def pack(tensors: Sequence[Tensor | None], codec: Codec | None = None) -> bytearray:
    """Pack tensors, of which some may be None, as bytes. A codec encodes those that it makes smaller."""
    described, parts = bytearray(_COUNT.pack(len(tensors))), list[Tensor]()
    for tensor in tensors:
        if tensor is None:
            described += _TENSOR.pack(_NONE, 0)
            continue
        if tensor.dtype not in _DTYPES:
            raise ExchangeError(f"a stage hands on {tensor.dtype}", hint="hand on float32, or int64 for whole numbers")
        kind, coded = _DTYPES.index(tensor.dtype), codec is not None and _is_smaller(codec, tensor)
        described += _TENSOR.pack(kind + _CODED if coded else kind, tensor.dim())
        for size in tensor.shape:
            described += _SIZE.pack(size)
        flat = tensor.detach().contiguous().reshape(-1)
        if codec is not None and coded:
            flat = codec.encode(flat.float())
        if flat.numel():
            parts.append(flat.view(torch.uint8).to("cpu"))
    begin = _aligned(len(described))
    total = begin + sum(_aligned(len(part)) for part in parts)
    if total > _MAX_BYTES:
        raise ExchangeError(f"what a stage hands on takes {total / 1e9:.1f} GB", hint="set a smaller micro_batch")
    result = bytearray(total)
    result[: len(described)] = described
    for part in parts:
        memoryview(result)[begin : begin + len(part)] = part.numpy().data
        begin += _aligned(len(part))
    return result


def _is_smaller(codec: Codec, tensor: Tensor) -> bool:
    return tensor.is_floating_point() and 0 < codec.size(tensor.numel()) < tensor.numel() * tensor.element_size()


def unpack(payload: bytearray, codec: Codec | None = None) -> Tensors:
    """Unpack the bytes of :func:`pack`; tensors without a codec share them. Raises MalformedFrame."""
    try:
        (count,), at = _COUNT.unpack_from(payload), _COUNT.size
        described: list[tuple[int, torch.Size] | None] = []
        for _ in range(count):
            code, dimensions = _TENSOR.unpack_from(payload, at)
            at += _TENSOR.size
            sizes = [_SIZE.unpack_from(payload, at + _SIZE.size * each)[0] for each in range(dimensions)]
            at += _SIZE.size * dimensions
            described.append(None if code == _NONE else (code, torch.Size(sizes)))
        at = _aligned(at)
        result: list[Tensor | None] = []
        for each in described:
            tensor, size = (None, 0) if each is None else _unpacked(payload, at, *each, codec)
            result.append(tensor)
            at += _aligned(size)
    except (struct.error, IndexError, ValueError, RuntimeError) as error:
        raise MalformedFrame(f"a TENSORS frame that does not hold what it says: {error}") from None
    return tuple(result)


def _unpacked(payload: bytearray, at: int, code: int, shape: torch.Size, codec: Codec | None) -> tuple[Tensor, int]:
    """Unpack one tensor; returns it with its number of bytes."""
    count = shape.numel()
    if code < _CODED:
        dtype = _DTYPES[code]
        if not count:
            return torch.empty(shape, dtype=dtype), 0
        return torch.frombuffer(payload, dtype=dtype, count=count, offset=at).view(shape), count * dtype.itemsize
    if codec is None:
        raise ValueError("it is written by a codec")
    numbers, size = torch.empty(count), codec.size(count)
    codec.decode(torch.frombuffer(payload, dtype=torch.uint8, count=size, offset=at), numbers)
    return numbers.to(_DTYPES[code - _CODED]).view(shape), size


def _aligned(size: int) -> int:
    return size + -size % _ALIGNMENT


class Waited(NamedTuple):
    """Seconds of waiting while something was being received, and while something was only being sent."""

    sending_s: float = 0.0
    receiving_s: float = 0.0


class _Busy:
    """Measures the time in which at least one of several threads is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._since, self._before = 0, 0.0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._since = time.monotonic()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before += time.monotonic() - self._since

    def seconds(self) -> float:
        with self._lock:
            return self._before + (time.monotonic() - self._since if self._inside else 0.0)


class _Link:
    """One connection, with a thread that sends."""

    def __init__(self, connection: Connection, peer: int, sending: _Busy, broken: Callable[[str], None]) -> None:
        self.connection, self._sending, self._broken = connection, sending, broken
        self._queue: queue.SimpleQueue[tuple[Header, bytearray] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"to-stage-{peer}", daemon=True)
        self._thread.start()

    def send(self, header: Header, payload: bytearray) -> None:
        self._queue.put((header, payload))

    def close(self) -> None:
        self._queue.put(None)
        self.connection.close()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                with self._sending:
                    self.connection.send(*item)
        except ExchangeError as error:
            self._broken(error.cause)


class StageLinks:
    """One stage's connections; :meth:`close` ends them.

    Args:
        secret: the secret of both ends of each connection.
        host: the address to listen on.

    Attributes:
        address: (host, port) on which it listens.
        waited: time of waiting for messages so far.
        codec: codec of activations and gradients, the same at all stages; None: they are sent unchanged.
    """

    codec: Codec | None = None

    def __init__(self, stage: int, secret: bytes, host: str) -> None:
        self._stage, self._secret = stage, secret
        self._ready = threading.Condition()
        self._links: dict[int, _Link] = {}
        self._arrived: dict[Name, Tensors] = {}
        self._cause = ""
        self._threads: list[threading.Thread] = []
        self._listener = Listener(host, secret, self._joined, f"stage-{stage}")
        self.address = self._listener.address
        self.sent = 0
        self.waited = Waited()
        self._sending, self._receiving = _Busy(), _Busy()
        self._listener.start()

    def open(self, addresses: Mapping[int, tuple[str, int]], peers: Collection[int], deadline_s: float) -> None:
        """Connect to the peers before this stage, which listen already, and wait for those after it.

        Args:
            peers: the stages with which this one exchanges data.
            deadline_s: seconds until those after it must have loaded their weights, and connected.

        Raises:
            ExchangeError: some are not.
        """
        for peer in sorted(each for each in peers if each < self._stage):
            self._add(self._connect(addresses[peer], time.monotonic() + RECONNECT_S), peer)
        end = time.monotonic() + deadline_s
        with self._ready:
            while missing := sorted(set(peers) - self._links.keys()):
                self._check()
                if not self._ready.wait(max(0.0, end - time.monotonic())):
                    raise ConnectionBroken(f"stage {missing[0]} did not connect within {deadline_s:.0f} s")

    def send(self, name: Name, tensors: Sequence[Tensor | None]) -> None:
        """Queue a message, and return at once; raises ExchangeError if a connection is broken."""
        payload = pack(tensors, self.codec if name.purpose in _COMPUTED else None)
        self._check()
        self.sent += len(payload)
        header = Header(Kind.TENSORS, step=name.step, slice=name.number, chunk=name.purpose, length=len(payload))
        self._links[name.peer].send(header, payload)

    def ready(self, *names: Name) -> bool:
        """Whether a message of one of these names has arrived."""
        with self._ready:
            return any(name in self._arrived for name in names)

    def wait(self, *names: Name, deadline_s: float = STEP_S) -> None:
        """Wait until a message of one of these names is here; raises ExchangeError if a connection breaks."""
        began, sending, receiving = time.monotonic(), self._sending.seconds(), self._receiving.seconds()
        with self._ready:
            if not self._ready.wait_for(
                lambda: self._cause or any(name in self._arrived for name in names), deadline_s
            ):
                raise ConnectionBroken(f"stage {names[0].peer} sent nothing within {deadline_s:.0f} s")
            self._check()
        waited = time.monotonic() - began
        received = min(waited, self._receiving.seconds() - receiving)
        sent = min(waited - received, self._sending.seconds() - sending)
        self.waited = Waited(self.waited.sending_s + sent, self.waited.receiving_s + received)

    def take(self, name: Name) -> Tensors:
        """Wait for a message, and return it once; raises as :meth:`wait`."""
        self.wait(name)
        with self._ready:
            return self._arrived.pop(name)

    def fail(self, cause: str) -> None:
        """Wake all waiting threads, since nothing more will arrive."""
        with self._ready:
            self._cause = self._cause or cause
            self._ready.notify_all()

    def close(self) -> None:
        with self._ready:
            self._cause = self._cause or "the connections to the other stages are closed"
            self._ready.notify_all()
            links = list(self._links.values())
        for link in links:
            link.close()
        self._listener.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_S)

    def _check(self) -> None:
        if self._cause:
            raise ConnectionBroken(self._cause)

    # --- Connections -------------------------------------------------------------------------------------------------

    def _connect(self, address: tuple[str, int], end: float) -> Connection:
        while True:
            try:
                return handshake.connect(address, self._secret)
            except ConnectionBroken:
                self._check()  # it may have been lost meanwhile
                if time.monotonic() > end:
                    raise
                time.sleep(ACCEPT_PAUSE_S)

    def _add(self, connection: Connection, peer: int) -> None:
        link = _Link(connection, peer, self._sending, self.fail)
        link.send(Header(Kind.TENSORS, slice=self._stage, chunk=Purpose.HELLO), bytearray())
        self._register(link, peer)
        receiving = threading.Thread(
            target=self._receive, args=(connection, peer), name=f"from-stage-{peer}", daemon=True
        )
        self._threads.append(receiving)
        receiving.start()

    def _register(self, link: _Link, peer: int) -> None:
        with self._ready:
            self._links[peer] = link
            self._ready.notify_all()

    def _joined(self, connection: Connection) -> None:
        peer = connection.receive_header(may_idle=False).slice
        self._register(_Link(connection, peer, self._sending, self.fail), peer)
        self._receive(connection, peer)

    def _receive(self, connection: Connection, peer: int) -> None:
        try:
            while True:
                header = connection.receive_header()
                if header.kind is not Kind.TENSORS:
                    raise MalformedFrame(f"a {header.kind.name} frame between two stages")
                payload = bytearray(header.length)
                with self._receiving:
                    connection.receive_into(payload)
                if header.chunk == Purpose.HELLO:
                    continue
                name = Name(peer, Purpose(header.chunk), header.step, header.slice)
                tensors = unpack(payload, self.codec)
                with self._ready:
                    self._arrived[name] = tensors
                    self._ready.notify_all()
        except ExchangeError as error:
            self.fail(f"stage {peer}: {error.cause}")
        finally:
            with contextlib.suppress(OSError):
                connection.close()
