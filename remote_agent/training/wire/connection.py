"""Sends and receives whole frames over one TCP connection, with deadlines that the kernel enforces.

One thread may send while another receives. Either may call :meth:`Connection.close`, which wakes both.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import Self

from remote_agent import tls
from remote_agent.training.wire import frames
from remote_agent.training.wire.deadlines import FRAME_S, SILENCE_S
from remote_agent.training.wire.errors import ConnectionBroken, ConnectionRefused, ExchangeError, MalformedFrame
from remote_agent.training.wire.frames import Header

_KEEPALIVE_PROBES = 3
_CONGESTION_CONTROL = b"cubic"
"""Linux's default. With others steps are longer: with BBR, which reduces its rate from time to time to probe,
``benchmarks.wire`` took 1.06-1.14 times the floor, with this one 1.00-1.01 times."""


Bytes = bytes | bytearray | memoryview


class Connection:
    """A connection over a socket, which it owns.

    Attributes:
        peer: the other side's address, for messages.
        bytes_out: bytes sent so far, with headers.
        bytes_in: bytes received so far, with headers.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self.bytes_out = 0
        self.bytes_in = 0
        self._socket: socket.socket | tls.Secured = sock
        self._plain = sock
        self._header = bytearray(frames.HEADER_BYTES)
        _configure(sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._socket.close()

    def close(self) -> None:
        """End the connection, so that both directions fail from now on. Idempotent, from any thread."""
        with contextlib.suppress(OSError):  # it is closed already, by the other side or by us
            self._socket.shutdown(socket.SHUT_RDWR)

    def encrypt(self, *, server: bool, address: str = "") -> None:
        """Encrypt all further data, if this process requires it; see :class:`~remote_agent.tls.Secured`.

        Raises:
            ConnectionBroken: the connection ended.
            ConnectionRefused: the other side has no certificate of this cluster.
        """
        if not tls.enabled():
            return
        try:
            self._socket = tls.Secured(self._plain, server=server, address=address)
        except OSError as error:
            raise self._broken(error) from error

    def send(self, header: Header | bytes, payload: Bytes = b"") -> None:
        """Send one frame, or bytes of the handshake.

        Raises:
            ConnectionBroken: the connection ended, or the frame could not be sent within :data:`FRAME_S`.
        """
        parts = [memoryview(header.pack() if isinstance(header, Header) else header), memoryview(payload).cast("B")]
        unsent = sum(map(len, parts))
        self.bytes_out += unsent  # before the receiver can answer, and the count is read
        try:
            while parts:
                sent = self._socket.sendmsg(parts)
                unsent -= sent
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][sent:]
        except OSError as error:
            self.bytes_out -= unsent
            raise self._broken(error) from error

    def receive_header(self, *, may_idle: bool = True) -> Header:
        """Receive the next frame's header.

        Args:
            may_idle: wait as long as the connection lives; otherwise up to :data:`FRAME_S`.

        Raises:
            ConnectionBroken: the connection ended, or the header did not arrive in time.
            MalformedFrame: the bytes are not a header.
        """
        self._fill(memoryview(self._header), may_idle=may_idle)
        return frames.unpack(self._header, self._received)

    def receive_into(self, buffer: Bytes) -> None:
        """Fill ``buffer``; raises ConnectionBroken if nothing arrives for :data:`FRAME_S`."""
        self._fill(memoryview(buffer).cast("B"), may_idle=False)

    def receive_control(self, header: Header) -> bytes:
        """Receive the payload of a control frame, which has no numbers.

        Raises:
            ConnectionBroken: as for :meth:`receive_into`.
            MalformedFrame: it is longer than any control frame.
        """
        if header.length > frames.MAX_CONTROL_BYTES:
            raise MalformedFrame(f"a {header.kind.name} frame of {header.length} bytes")
        return self._received(header.length)

    def _received(self, size: int) -> bytes:
        buffer = bytearray(size)
        self.receive_into(buffer)
        return bytes(buffer)

    def _fill(self, view: memoryview, *, may_idle: bool) -> None:
        begun = False
        while len(view):
            try:
                count = self._socket.recv_into(view, 0, socket.MSG_WAITALL)
            except BlockingIOError as error:
                if may_idle and not begun:
                    continue  # nothing has to arrive; keepalive detects a dead peer
                raise self._broken(error) from error
            except OSError as error:
                raise self._broken(error) from error
            if not count:
                raise ConnectionBroken(f"{self.peer} closed the connection")
            begun = True
            self.bytes_in += count
            view = view[count:]

    def _broken(self, error: OSError) -> ExchangeError:
        if isinstance(error, tls.CertificateRejected):
            return ConnectionRefused(f"{self.peer}: {error}", hint="run `down`, then `up`: all hosts get new ones")
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            return ConnectionBroken(f"{self.peer} did not move a frame within {FRAME_S:g} s")
        return ConnectionBroken(f"the connection to {self.peer} broke: {error.strerror or error}")

    def limit(self, seconds: float) -> None:
        """Set the time that one system call may wait."""
        # The kernel's own limits: Python's would cost two more system calls a frame.
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        self._socket.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)


def _configure(sock: socket.socket) -> None:
    """Configure a socket to send at once and at a steady rate, and to detect a silent peer within :data:`SILENCE_S`."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_CONGESTION"):
        with contextlib.suppress(OSError):  # the kernel may lack it or allow it to root only; then keep its default
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONGESTION_CONTROL)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe = max(1, int(SILENCE_S / (_KEEPALIVE_PROBES + 1)))
    options = {
        "TCP_KEEPIDLE": probe,
        "TCP_KEEPALIVE": probe,  # macOS's name for it
        "TCP_KEEPINTVL": probe,
        "TCP_KEEPCNT": _KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": int(SILENCE_S * 1000),
    }
    for name, value in options.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
