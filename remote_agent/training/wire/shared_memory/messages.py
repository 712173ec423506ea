"""Defines the messages on a shared-memory channel's socket: one for each packet, a fixed part and optional text."""

from __future__ import annotations

import enum
import os
import socket
import struct
from dataclasses import dataclass

from remote_agent.training.errors import TrainingError

MAX_BYTES = 4096
"""The longest message."""

_FIXED = struct.Struct("=BQIIId")
_CREDENTIALS = struct.Struct("=iII")


class SharedMemoryError(TrainingError):
    """Shared memory can't be used, or the process at its other end is gone."""


class Kind(enum.IntEnum):
    """See :class:`Message`."""

    JOIN = 1
    WELCOME = 2
    GRADIENT = 3
    WHOLE = 4
    FAILURE = 5


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        kind: JOIN (from a worker; with its gradient's memory, and the layout's signature as text), WELCOME (with the
            memory of the even and of the odd steps' weights), GRADIENT (with memory, if it is not the worker's usual
            one), WHOLE (all weights of ``step`` are ready), FAILURE (why the connection ends).
        slices: number of slices in the step.
        samples: number of samples in all slices.
        weight: weight of the slice in the mean.
    """

    kind: Kind
    step: int = 0
    slice: int = 0
    slices: int = 0
    samples: int = 0
    weight: float = 0.0
    text: bytes = b""


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message with memory, without waiting; raises OSError if the other side is gone, or stuck."""
    fixed = _FIXED.pack(message.kind, message.step, message.slice, message.slices, message.samples, message.weight)
    packet = fixed + message.text[: MAX_BYTES - _FIXED.size]
    if descriptors:
        socket.send_fds(sock, [packet], list(descriptors), socket.MSG_DONTWAIT)
    else:
        sock.send(packet, socket.MSG_DONTWAIT)


def receive(sock: socket.socket) -> tuple[Message, list[int]]:
    """Receive the next message and its descriptors, which the caller closes.

    Raises:
        SharedMemoryError: the other side is gone, or sent something else.
        OSError: as the socket raises.
    """
    packet, descriptors, _, _ = socket.recv_fds(sock, MAX_BYTES, 2)
    try:
        if not packet:
            raise SharedMemoryError("the process at the other end of the shared memory is gone")
        kind, step, index, slices, samples, weight = _FIXED.unpack_from(packet)
        return Message(Kind(kind), step, index, slices, samples, weight, packet[_FIXED.size :]), descriptors
    except (struct.error, ValueError):
        close(descriptors)
        raise SharedMemoryError("a message that a shared-memory channel does not know") from None


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
