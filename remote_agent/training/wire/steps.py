"""One step as a worker sees it: what it contributes, and what it has of the new weights. No network here."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from remote_agent.training.wire import codecs
from remote_agent.training.wire.agreement import decode
from remote_agent.training.wire.codecs import Codec
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Chunk, Layout


@dataclass(frozen=True, kw_only=True)
class Timings:
    """What a step's exchange took, on this worker.

    Attributes:
        push_s: from the first part of a gradient that was offered until the last one was on its way; 0 without a slice.
        pull_s: from then (or from the step's beginning) until all new weights were here.
        bytes_out: sent to all shards, frame headers included, those of TCP and below not.
        bytes_in: received from them.
    """

    push_s: float
    pull_s: float
    bytes_out: int
    bytes_in: int


class Contribution:
    """One slice's gradient sum, offered as it becomes ready and encoded as it is sent.

    What was encoded is kept until the step is over, so that a chunk that has to be sent again is the same to the bit.

    Args:
        header: step, slice, slices, samples and weight; copied for every chunk.
        gradient: float32, shape ``(layout.numel,)``, any device; must stay as it is until the step is over.
        codec: of gradients.
        residual: for error feedback: like ``gradient``, changed as chunks are encoded; None: without.

    Attributes:
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
        self.step, self.slice = header.step, header.slice
        self.begun: float | None = None
        self.sent: set[int] = set()
        self._layout, self._header, self._gradient, self._codec = layout, header, gradient, codec
        self._residual = residual
        self.ready: Callable[[list[int]], None] = lambda _chunks: None
        self._left = [chunk.numel for chunk in layout.chunks]
        self._payloads: dict[int, Tensor] = {}

    def offer(self, begin: int, end: int) -> None:
        """Numbers ``begin`` to ``end`` of the gradient are final; each number is offered once, in any order."""
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
        """The GRADIENT frame of one chunk; called by one thread for any chunk."""
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


class IncomingWeights:
    """Weights as they come in; each chunk counts once.

    Args:
        step: which ones: the number of the step, of the slice that they answer, or of the pull.
        codec: of weights.
        out: where they go: float32, shape ``(layout.numel,)``.

    Attributes:
        has: for each chunk, whether it is here.
    """

    def __init__(self, layout: Layout, step: int, codec: Codec, out: Tensor) -> None:
        if out.shape != (layout.numel,) or out.dtype != torch.float32 or not out.is_contiguous():
            raise ValueError(f"weights are one flat float32 buffer of {layout.numel} numbers")
        self.step = step
        self.has = [False] * len(layout.chunks)
        self._missing = len(layout.chunks)
        self._layout, self._codec, self._out = layout, codec, out
        self._lock = threading.Lock()

    @property
    def whole(self) -> bool:
        return not self._missing

    def awaits(self, header: Header) -> bool:
        """Whether the frame is what is missing here."""
        return not self.has[header.chunk]

    def memory(self, header: Header) -> memoryview | None:
        """Where the payload can be received as it is; None if it has to be decoded, or is not awaited."""
        is_encoded = self._codec.lossy and header.kind is Kind.WEIGHTS
        if is_encoded or not self.awaits(header) or self._out.device.type != "cpu":
            return None
        chunk = self._layout.chunks[header.chunk]
        return self._out[chunk.begin : chunk.end].view(torch.uint8).numpy().data

    def decode(self, header: Header, payload: Tensor) -> None:
        """Take in a WEIGHTS or WHOLE frame (uint8, on the CPU); nothing happens when it is not awaited."""
        if not self.awaits(header):
            return
        chunk = self._layout.chunks[header.chunk]
        target = self._out[chunk.begin : chunk.end]
        payload = payload.to(target.device)
        if header.kind is Kind.WHOLE:
            target.copy_(payload.view(torch.float32))
        else:
            self._decode(chunk, payload, target)
        self.arrived(header)

    def _decode(self, chunk: Chunk, payload: Tensor, target: Tensor) -> None:
        del chunk
        decode(self._codec, payload, target)

    def arrived(self, header: Header) -> None:
        """The frame's chunk is in its place."""
        with self._lock:
            if not self.has[header.chunk]:
                self.has[header.chunk] = True
                self._missing -= 1


class NewWeights(IncomingWeights):
    """The weights after ``step``: what comes in are differences, with a codec that loses something.

    Args:
        weights: those of the step before, float32, shape ``(layout.numel,)``; read only. ``out`` is other memory.
    """

    def __init__(self, layout: Layout, step: int, codec: Codec, weights: Tensor, out: Tensor) -> None:
        super().__init__(layout, step, codec, out)
        if weights.shape != out.shape or weights.dtype != torch.float32 or not weights.is_contiguous():
            raise ValueError(f"weights are one flat float32 buffer of {layout.numel} numbers")
        if layout.numel and weights.data_ptr() == out.data_ptr():
            raise ValueError("new weights need a buffer of their own: a lost slice is computed with the old ones")
        self._weights = weights

    def goes_to(self, out: Tensor) -> bool:
        return self._out.data_ptr() == out.data_ptr()

    def _decode(self, chunk: Chunk, payload: Tensor, target: Tensor) -> None:
        if not self._codec.lossy:
            super()._decode(chunk, payload, target)
            return
        difference = torch.empty_like(target)
        decode(self._codec, payload, difference)
        # A separate addition, on every device: one that is fused with the decoding would round once less.
        torch.add(self._weights[chunk.begin : chunk.end], difference, out=target)
