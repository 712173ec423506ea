"""Sends and receives the frames of a shared-memory channel: one a packet, with memory in the place of numbers.

======== ======== =====================================================================================================
kind     from     meaning
======== ======== =====================================================================================================
HELLO    worker   with its gradient's memory; the payload is the layout's signature
WELCOME  shard    with the memory of the even and of the odd steps' weights
GRADIENT worker   a whole slice is ready; with memory, if it is not the worker's usual one
WEIGHTS  shard    all weights of ``step`` are ready
FAILURE  shard    the payload says why the connection ends
======== ======== =====================================================================================================
"""

from __future__ import annotations

import os
import socket
import struct

from remote_agent.training.errors import TrainingError
from remote_agent.training.wire import frames
from remote_agent.training.wire.errors import MalformedFrame
from remote_agent.training.wire.frames import HEADER_BYTES, Header

MAX_BYTES = 1 << 16
"""The longest packet."""

_CREDENTIALS = struct.Struct("=iII")


class SharedMemoryError(TrainingError):
    """Shared memory can't be used, or the process at its other end is gone."""


def send(sock: socket.socket, header: Header, payload: bytes = b"", descriptors: tuple[int, ...] = ()) -> None:
    """Send one frame with memory, without waiting; raises OSError if the other side is gone, or stuck."""
    packet = header.pack()
    packet += payload[: MAX_BYTES - len(packet)]
    if descriptors:
        socket.send_fds(sock, [packet], list(descriptors), socket.MSG_DONTWAIT)
    else:
        sock.send(packet, socket.MSG_DONTWAIT)


def receive(sock: socket.socket) -> tuple[Header, bytes, list[int]]:
    """Receive the next frame, its payload and its descriptors, which the caller closes.

    Raises:
        SharedMemoryError: the other side is gone, or sent something else.
        OSError: as the socket raises.
    """
    packet, descriptors, _, _ = socket.recv_fds(sock, MAX_BYTES, 2)
    try:
        if not packet:
            raise SharedMemoryError("the process at the other end of the shared memory is gone")
        header = frames.unpack(packet[:HEADER_BYTES], lambda size: packet[HEADER_BYTES : HEADER_BYTES + size])
        return header, packet[HEADER_BYTES + len(header.options) :], descriptors
    except (struct.error, MalformedFrame):
        close(descriptors)
        raise SharedMemoryError("a frame that a shared-memory channel does not know") from None


def close(descriptors: list[int]) -> None:
    """Close all descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def check_peer(sock: socket.socket) -> None:
    """Raise SharedMemoryError if the other process is another user's (unix(7), ``SO_PEERCRED``)."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    if user != os.geteuid():
        raise SharedMemoryError(f"a process of user {user} is at the other end of the shared-memory channel")
