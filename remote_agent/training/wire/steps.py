"""Holds a worker's state of one step: its contributions, and the new weights so far. It has no network code."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from remote_agent.training.wire import codecs
from remote_agent.training.wire.codecs import Codec, decode
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The times and bytes of a step's exchange, on this worker.

    Attributes:
        push_s: from the offer of the first part of a gradient until the last part was being sent; 0 without a slice.
        pull_s: from then (or from the step's start) until all new weights had arrived.
        bytes_out: bytes sent to all shards, with frame headers, without those of TCP and below.
        bytes_in: bytes received from them.
    """

    push_s: float
    pull_s: float
    bytes_out: int
    bytes_in: int


def piece_of(header: Header) -> tuple[int, int, int]:
    """What a GRADIENT, ASK or COUNTED frame is about in its step: slice, part and parts."""
    return header.slice, header.part, header.parts


class Contribution:
    """One slice's gradient sum, which is offered in parts and encoded when it is sent.

    Encoded chunks are kept until the step is over, so that a chunk is bitwise the same if it is sent again.

    Args:
        header: step, slice, slices, samples and weight; copied for every chunk.
        gradient: float32, shape ``(layout.numel,)``, any device; must not change until the step is over.
        residual: for error feedback: like ``gradient``, changed as chunks are encoded; None: no error feedback.

    Attributes:
        piece: which slice, or part of one; see :func:`piece_of`.
        begun: when the first part was offered, on the monotonic clock.
        sent: chunks that were given to a connection, whether or not they arrived.
        ready: called with the numbers of chunks that can be sent.
    """

    def __init__(
        self,
        layout: Layout,
        header: Header,
        gradient: Tensor,
        codec: Codec,
        residual: Tensor | None,
    ) -> None:
        self.step, self.piece = header.step, piece_of(header)
        self.begun: float | None = None
        self.sent: set[int] = set()
        self._layout, self._header, self._gradient, self._codec = layout, header, gradient, codec
        self._residual = residual
        self.ready: Callable[[list[int]], None] = lambda _chunks: None
        self._left = [chunk.numel for chunk in layout.chunks]
        self._payloads: dict[int, Tensor] = {}

    def offer(self, begin: int, end: int) -> None:
        """Offer the numbers ``begin`` to ``end`` of the gradient, which are final; once each, in any order."""
        if self.begun is None:
            self.begun = time.monotonic()
        complete = []
        for number in self._layout.overlapping(begin, end):
            chunk = self._layout.chunks[number]
            self._left[number] -= min(end, chunk.end) - max(begin, chunk.begin)
            if self._left[number] < 0:
                raise ValueError(f"numbers {begin} to {end} of the gradient were offered twice")
            if self._left[number] == 0:
                complete.append(number)
        self.ready(complete)

    def frame(self, number: int) -> tuple[Header, memoryview]:
        """Make the GRADIENT frame of one chunk; one thread calls this for any chunk."""
        payload = self._payloads.get(number)
        if payload is None:
            payload = self._payloads[number] = self._encode(number)
        header = dataclasses.replace(self._header, chunk=number, codec=self._codec.code, length=len(payload))
        return header, payload.numpy().data

    def _encode(self, number: int) -> Tensor:
        chunk = self._layout.chunks[number]
        values = self._gradient[chunk.begin : chunk.end]
        if self._residual is None:
            return self._codec.encode(values).cpu()
        return codecs.encode_with_feedback(self._codec, values, self._residual[chunk.begin : chunk.end]).cpu()


class NewWeights:
    """The arriving weights after ``step``; each chunk counts once. With a lossy codec, differences arrive.

    Args:
        weights: the weights of the step before, float32, shape ``(layout.numel,)``; read only.
        out: gets the new weights; other memory of the same shape.

    Attributes:
        has: for each chunk, whether it has arrived.
        here: called with each chunk once it has arrived, by a thread that receives.
    """

    def __init__(self, layout: Layout, step: int, codec: Codec, weights: Tensor, out: Tensor) -> None:
        for buffer in (weights, out):
            if buffer.shape != (layout.numel,) or buffer.dtype != torch.float32 or not buffer.is_contiguous():
                raise ValueError(f"weights are one flat float32 buffer of {layout.numel} numbers")
        if layout.numel and weights.data_ptr() == out.data_ptr():
            raise ValueError("new weights need a buffer of their own: a lost slice is computed with the old ones")
        self.step = step
        self.has = [False] * len(layout.chunks)
        self.here: Callable[[int], None] = lambda _chunk: None
        self._missing = len(layout.chunks)
        self._layout, self._codec, self._weights, self._out = layout, codec, weights, out
        self._lock = threading.Lock()

    @property
    def whole(self) -> bool:
        return not self._missing

    def goes_to(self, out: Tensor) -> bool:
        return self._out.data_ptr() == out.data_ptr()

    def awaits(self, header: Header) -> bool:
        """Whether the frame is still missing here."""
        return header.step == self.step and not self.has[header.chunk]

    def memory(self, header: Header) -> memoryview | None:
        """The memory into which the payload can be received; None: it has to be decoded, or is not awaited."""
        is_encoded = self._codec.lossy and header.kind is Kind.WEIGHTS
        if is_encoded or not self.awaits(header) or self._out.device.type != "cpu":
            return None
        chunk = self._layout.chunks[header.chunk]
        return self._out[chunk.begin : chunk.end].view(torch.uint8).numpy().data

    def decode(self, header: Header, payload: Tensor) -> None:
        """Decode a WEIGHTS or WHOLE frame (uint8, on the CPU), unless it is not awaited."""
        if not self.awaits(header):
            return
        chunk = self._layout.chunks[header.chunk]
        target = self._out[chunk.begin : chunk.end]
        payload = payload.to(target.device)
        if header.kind is Kind.WHOLE:
            target.copy_(payload.view(torch.float32))
        elif not self._codec.lossy:
            decode(self._codec, payload, target)
        else:
            difference = torch.empty_like(target)
            decode(self._codec, payload, difference)
            # A separate addition on every device, since a fused one would round only once.
            torch.add(self._weights[chunk.begin : chunk.end], difference, out=target)
        self.arrived(header)

    def arrived(self, header: Header) -> None:
        """Mark the frame's chunk as arrived."""
        with self._lock:
            if self.has[header.chunk]:
                return
            self.has[header.chunk] = True
            self._missing -= 1
        self.here(header.chunk)
