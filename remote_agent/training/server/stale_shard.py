"""Holds a shard of ``ssp`` or ``async``, which applies each slice's gradient when it arrives. It has no network code.

Workers push gradients that were computed with weights of different ages, and each gets the new weights in return; see
Recht et al., "Hogwild!" (NIPS 2011); Dean et al., "Large scale distributed deep networks" (NIPS 2012); Ho et al., "More
effective distributed ML via a stale synchronous parallel parameter server" (NIPS 2013). The coordinator bounds the age
when it issues slices; a shard accepts every slice, and counts each (slice, chunk) once, whichever worker sends it.

A slice of ``n`` samples makes the optimizer's step along its own mean gradient, with the learning rate multiplied by
``n / batch``. So the slices of a batch together move the weights as far as one synchronous step does:

- Plain SGD: exactly so, if the slices are computed with the same weights. With weight decay up to terms of the second
  order in the learning rate.
- Momentum, Adam and their kin: steps as long, but moments are updated once a slice in the place of once a batch. They
  look back over fewer samples, and Adam's second moment sees the noise of a slice, not of a batch: steps are somewhat
  shorter. (Gradients scaled by ``n / batch`` in the place of the learning rate would leave Adam's steps at full
  length, so that a batch of k slices would move the weights k times as far.)
- Rprop has step sizes of its own, which the learning rate does not reach: k slices are k steps.

Memory: the weights, the optimizer's state, and one chunk for each connection; none of it grows with time.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

from remote_agent.training.server.published_chunks import HeldChunks
from remote_agent.training.server.slice_log import SliceLog
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.wire.agreement import Codecs, decode
from remote_agent.training.wire.errors import ExchangeError, MalformedFrame
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.outbox import Frame

_MAX = 2**32 - 1  # in the header's field


@dataclass
class _Entry:
    """One chunk: its weights, and the number of ``samples`` counted in them.

    ``lock`` is held while any of it changes.
    """

    weights: Tensor
    samples: int
    log: SliceLog = field(default_factory=SliceLog)
    lock: threading.Lock = field(default_factory=threading.Lock)


class StaleShard(HeldChunks):
    """The chunks of one shard; every method may be called from any thread.

    Args:
        weights: the whole flat buffer after ``step`` (float32, shape ``(layout.numel,)``); own chunks are copied.
        update: applies a mean gradient; its chunks are bound here.
        codecs: the run's. The codec of weights encodes them whole, not their changes.
        batch: number of samples of a whole step, for the learning rate and its schedule.
        step: number of whole steps in the weights.
    """

    def __init__(
        self,
        layout: Layout,
        number: int,
        weights: Tensor,
        update: OptimizerUpdate,
        codecs: Codecs,
        *,
        batch: int,
        step: int = 0,
    ) -> None:
        if codecs.weights.feedback:
            raise ValueError(f"weights as they are can't travel in {codecs.weights.name}: it is for differences")
        super().__init__(layout, number, codecs)
        self._update, self._batch = update, batch
        self._entries: dict[int, _Entry] = {}
        for chunk in self.chunks:
            part = layout.chunks[chunk]
            own = weights[part.begin : part.end].detach().to("cpu", torch.float32, copy=True)
            self._entries[chunk] = _Entry(own, step * batch)
            update.bind(chunk, own)

    # --- Gradients in ------------------------------------------------------------------------------------------------

    def contribute(self, header: Header, payload: Tensor, scratch: Tensor) -> bool:
        """Apply a GRADIENT frame of slice ``header.step``, of ``header.samples`` samples.

        Args:
            payload: of :meth:`payload_size` bytes (uint8): the gradient sum over the slice's samples, which weigh
                ``header.weight`` in their mean.
            scratch: float32, as long as the longest chunk; overwritten.

        Returns:
            Whether it counted; not if it was counted before.

        Raises:
            MalformedFrame: it is not a slice.
            ExchangeError: the optimizer failed.
        """
        if not header.step or not 0 < header.samples <= self._batch:
            raise MalformedFrame(f"slice {header.step} of {header.samples} samples, of batches of {self._batch}")
        if not 0 <= header.weight < math.inf:
            raise MalformedFrame(f"slice {header.step} weighs {header.weight}")
        entry = self._entries[header.chunk]
        gradient = scratch[: len(entry.weights)]
        with entry.lock:
            if header.step in entry.log:
                return False
            decode(self.codecs.gradients, payload, gradient)
            step = entry.samples // self._batch + 1
            try:
                if header.weight:  # else no sample of it counts
                    gradient.div_(header.weight)
                    self._update.apply(header.chunk, step, gradient, header.samples / self._batch)
            except Exception as error:  # the user's optimizer can raise anything, and may have changed any number
                cause = f"the optimizer failed on chunk {header.chunk}: {type(error).__name__}: {error}"
                raise ExchangeError(cause, hint="correct the job's create_optimizer") from error
            entry.log.add(header.step)
            entry.samples += header.samples
        return True

    def counted(self, slice_number: int) -> list[bool]:
        """For each chunk of the shard, whether the slice is counted."""
        return [slice_number in self._entries[chunk].log for chunk in self.chunks]

    def samples(self) -> list[int]:
        """For each chunk of the shard, the number of samples in its weights."""
        return [self._entries[chunk].samples for chunk in self.chunks]

    def weights(self, chunk: int) -> Tensor:
        """A copy of the chunk's current weights."""
        return self._copy(chunk, torch.empty_like(self._entries[chunk].weights))[0]

    # --- Weights out -------------------------------------------------------------------------------------------------

    def answer(self, slice_number: int, chunk: int, buffer: Tensor) -> Frame:
        """The frame of the current chunk, for the worker that sent slice ``slice_number``.

        Args:
            slice_number: copied to the header's ``step``; its ``slice`` is the number up to which all slices are in.
            buffer: float32, at least the chunk's length; the frame's payload may lie in it.
        """
        codec = self.codecs.weights
        weights, watermark = self._copy(chunk, buffer)
        payload = codec.encode(weights)
        header = Header(
            Kind.WEIGHTS,
            step=slice_number,
            slice=min(watermark, _MAX),
            chunk=chunk,
            codec=codec.code,
            length=len(payload),
        )
        return Frame(header, payload.numpy().data)

    def whole(self, asked: int, chunk: int, buffer: Tensor) -> Frame:
        """The frame of the current chunk in fp32, for request ``asked``; otherwise as :meth:`answer`."""
        weights, watermark = self._copy(chunk, buffer)
        payload = weights.view(torch.uint8)
        header = Header(Kind.WHOLE, step=asked, slice=min(watermark, _MAX), chunk=chunk, length=len(payload))
        return Frame(header, payload.numpy().data)

    def _copy(self, chunk: int, buffer: Tensor) -> tuple[Tensor, int]:
        entry = self._entries[chunk]
        with entry.lock:
            weights = buffer[: len(entry.weights)].copy_(entry.weights)
            return weights, entry.log.watermark
