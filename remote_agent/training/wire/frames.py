"""Defines the frames on a connection after the handshake: a fixed header and a payload, in network byte order.

=========== ======== =================================================================================================
kind        from     meaning
=========== ======== =================================================================================================
HELLO       worker   first frame: layout, codecs and, if it has weights, ``step`` and which of the shard's chunks it
                     holds at ``step`` (it holds the others at ``step - 1``)
WELCOME     shard    answer; the weights that the worker lacks follow
GRADIENT    worker   sum of the gradients of the ``slice``'s samples for one chunk, with their ``weight`` in the mean;
                     the step has ``slices`` slices with ``samples`` samples together, and the optimizer's ``options``.
                     To a relay also the sum over part number ``part`` of the slice, which has ``parts`` parts
WEIGHTS     shard    one chunk's change from ``step - 1`` to ``step`` (with a lossless codec its new value)
FETCH       worker   asks for WHOLE frames of all chunks of the shard
WHOLE       shard    one chunk as every worker holds it at ``step``, in fp32
FETCHED     shard    follows the last WHOLE; ``step`` is the newest step of any chunk of the shard
ASK         worker   asks which chunks of (``step``, ``slice``, ``part``, ``parts``) are counted
COUNTED     shard    the answer, one bit for each chunk of the shard
NORM_PART   shard    all mean gradients of ``step`` are complete; float64: their squared norm
NORM_TOTAL  worker   float64: the sum of all shards' parts, always added in the shards' order
TENSORS     stage    tensors for another stage of a pipeline (:mod:`stage_links`): ``slice`` is the micro-batch,
                     ``chunk`` the purpose
FAILURE     shard    the reason for closing the connection: a :class:`Reason` (one byte), then UTF-8 text
=========== ======== =================================================================================================

Bits are packed with the lowest first. Any other frame is a :class:`MalformedFrame`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from remote_agent.training.wire.errors import MalformedFrame

VERSION = 4
_MAGIC = 0x4854
_HEADER = struct.Struct("!HBBBBBxQIIQIIdI")
HEADER_BYTES = _HEADER.size
MAX_CONTROL_BYTES = 1 << 16
"""The longest payload of a control frame: the bits of half a million chunks."""

_NUMBER = struct.Struct("!d")


class Kind(enum.IntEnum):
    """See the module."""

    HELLO = 1
    WELCOME = 2
    GRADIENT = 3
    WEIGHTS = 4
    FETCH = 5
    WHOLE = 6
    FETCHED = 7
    ASK = 8
    COUNTED = 9
    NORM_PART = 10
    NORM_TOTAL = 11
    FAILURE = 12
    TENSORS = 13


class Reason(enum.IntEnum):
    """A worker's reaction to a FAILURE: none by itself, or to fetch the weights whole."""

    OTHER = 0
    FELL_BEHIND = 1


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a payload of ``length`` bytes; fields without meaning for a kind are 0.

    ``parts`` is 0 for a whole slice. ``options`` are encoded, and follow the fixed part of the header.
    """

    kind: Kind
    step: int = 0
    slice: int = 0
    slices: int = 0
    samples: int = 0
    chunk: int = 0
    codec: int = 0
    length: int = 0
    weight: float = 0.0
    part: int = 0
    parts: int = 0
    options: bytes = b""

    def pack(self) -> bytes:
        fixed = _HEADER.pack(
            _MAGIC,
            VERSION,
            self.kind,
            self.codec,
            self.part,
            self.parts,
            self.step,
            self.slice,
            self.slices,
            self.samples,
            self.chunk,
            self.length,
            self.weight,
            len(self.options),
        )
        return fixed + self.options


def unpack(data: bytes | bytearray, rest: Callable[[int], bytes]) -> Header:
    """Read a header from :data:`HEADER_BYTES` bytes; ``rest`` gives so many of the bytes after them.

    Raises:
        MalformedFrame: they are no header.
    """
    magic, version, kind, codec, part, parts, step, index, slices, samples, chunk, length, weight, more = (
        _HEADER.unpack(data)
    )
    if magic != _MAGIC:
        raise MalformedFrame("what arrived is not a frame", hint="something else uses this port")
    if version != VERSION:
        raise MalformedFrame(f"the other side speaks version {version} of the exchange, this one {VERSION}")
    if more > MAX_CONTROL_BYTES:
        raise MalformedFrame(f"options of {more} bytes")
    try:
        known = Kind(kind)
    except ValueError:
        raise MalformedFrame(f"a frame of the unknown kind {kind}") from None
    options = rest(more) if more else b""
    return Header(known, step, index, slices, samples, chunk, codec, length, weight, part, parts, options)


def pack_number(number: float) -> bytes:
    """Pack a number as a float64 payload."""
    return _NUMBER.pack(number)


def unpack_number(payload: bytes) -> float:
    """Read the number of a float64 payload; raises MalformedFrame if it has another length."""
    if len(payload) != _NUMBER.size:
        raise MalformedFrame(f"a number of {len(payload)} bytes")
    number: float = _NUMBER.unpack(payload)[0]
    return number


def pack_bits(bits: Iterable[bool]) -> bytes:
    """Pack bits as bytes."""
    positions = list(bits)
    number = sum(1 << position for position, bit in enumerate(positions) if bit)
    return number.to_bytes(-(-len(positions) // 8), "little")


def unpack_bits(payload: bytes, count: int) -> list[bool]:
    """Read ``count`` bits; raises MalformedFrame if the payload has another number."""
    if len(payload) != -(-count // 8):
        raise MalformedFrame(f"{len(payload)} bytes instead of one bit for each of {count} chunks")
    number = int.from_bytes(payload, "little")
    return [bool(number >> position & 1) for position in range(count)]


def pack_failure(reason: Reason, text: str) -> bytes:
    """Pack the payload of a FAILURE frame; a long text is cut."""
    return bytes([reason]) + text.encode()[: MAX_CONTROL_BYTES - 1]


def unpack_failure(payload: bytes) -> tuple[Reason, str]:
    """Read the reason and the text; a reason that this version does not know becomes OTHER."""
    known = payload[:1] == bytes([Reason.FELL_BEHIND])
    return (Reason.FELL_BEHIND if known else Reason.OTHER), payload[1:].decode(errors="replace")
