"""Holds one shard: its chunks' weights and optimizer, and the sums of arriving gradients. It has no network code.

In a step, the gradients of all slices of a chunk are added (``sums``) and divided by their weight; the optimizer makes
its step (``update``), and the result is encoded once. Every worker gets the same bytes. With a lossy codec, the shard
sends the difference between the weights and the *replica*, the copy that all workers hold, and both sides add the
decoded difference to the replica. So all workers have bitwise the same weights, and what one difference loses is part
of the next one (error feedback; see Richtárik et al., "EF21", NeurIPS 2021).

With ``most_norm`` the gradient is clipped by its global norm, as ``torch.nn.utils.clip_grad_norm_`` does: a shard's
chunks then wait for each other, and for the norms of the other shards. A single shard needs no other norms.

Memory: weights, sums, the last payload of each chunk, and the replica with a lossy codec; it does not grow with the
number of workers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from remote_agent.training.server.published_chunks import Listener, PublishedChunks, in_own_pages
from remote_agent.training.server.sums import ChunkSum
from remote_agent.training.server.update import OptimizerUpdate
from remote_agent.training.wire import frames
from remote_agent.training.wire.codecs import EXACT, Codecs
from remote_agent.training.wire.errors import ExchangeError, MalformedFrame
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.outbox import Frame

_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Shard(PublishedChunks):
    """The chunks of one shard; every method may be called from any thread.

    Args:
        weights: the whole flat buffer after ``step`` (float32, shape ``(layout.numel,)``); own chunks are copied.
        update: applies a mean gradient; its chunks are bound here.
        codecs: the run's codecs for the network; gradients through shared memory may also be exact.
        most_norm: clip the gradient to this global norm.
        step: number of steps in the weights.
        keep: makes, from (chunk, step, the workers' weights), a copy that stays unchanged until the chunk's step after
            the next one; default: in memory of its own.
    """

    def __init__(
        self,
        layout: Layout,
        number: int,
        weights: Tensor,
        update: OptimizerUpdate,
        codecs: Codecs,
        *,
        most_norm: float | None = None,
        step: int = 0,
        keep: Callable[[int, int, Tensor], Tensor] | None = None,
    ) -> None:
        self._keep = keep
        super().__init__(layout, number, codecs, step)
        self._places = {chunk: place for place, chunk in enumerate(self.chunks)}
        self._update = update
        self._most_norm = most_norm
        self._weights: dict[int, Tensor] = {}
        self._replicas: dict[int, Tensor] = {}
        self._sums: dict[int, ChunkSum] = {}
        self._norm_parts: dict[int, float] = {}
        self._norm_lock = threading.Lock()
        self._norm_frame: Frame | None = None
        for chunk in self.chunks:
            part = layout.chunks[chunk]
            self._weights[chunk] = weights[part.begin : part.end].detach().to("cpu", torch.float32, copy=True)
            lossy = codecs.weights.lossy
            self._replicas[chunk] = self._weights[chunk].clone() if lossy else self._weights[chunk]
            self._sums[chunk] = ChunkSum(torch.zeros(part.numel, dtype=torch.float32), step)
            update.bind(chunk, self._weights[chunk])

    # --- Gradients in ------------------------------------------------------------------------------------------------

    def contribute(self, header: Header, payload: Tensor, scratch: Tensor) -> bool:
        """Count a GRADIENT frame, as the base says; the last slice of a chunk makes its step and publishes it."""
        chunk = header.chunk
        codec = self.codecs.gradients if header.codec == self.codecs.gradients.code else EXACT.gradients
        entry = self._sums[chunk]
        with entry.lock:
            new = entry.add(header, codec, payload, scratch)
            if not new or not entry.whole:
                return new
            gradient = entry.mean()
            if self._most_norm is None:
                self._apply(chunk, gradient)
                return True
        self._add_norm(chunk, header.step, gradient)
        return True

    def counted(self, header: Header) -> list[bool]:
        step, index = header.step, header.slice
        return [self._sums[chunk].step >= step or index in self._sums[chunk].counted for chunk in self.chunks]

    # --- Clipping ----------------------------------------------------------------------------------------------------

    def _add_norm(self, chunk: int, step: int, gradient: Tensor) -> None:
        """Once all chunks are complete, publish the squared norm of this shard's gradient."""
        square = float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
        with self._norm_lock:
            self._norm_parts[chunk] = square
            if len(self._norm_parts) < len(self.chunks):
                return
            part = math.fsum(self._norm_parts[own] for own in self.chunks)
            if self.layout.shards == 1:
                self._clip_and_apply(part)
                return
            payload = frames.pack_number(part)
            with self._publishing:
                self._norm_frame = Frame(Header(Kind.NORM_PART, step=step, length=len(payload)), payload)
                for listener in self._listeners:
                    listener.put(self._norm_frame)

    def apply_clipped(self, step: int, total: float) -> None:
        """Make the step with the clipped gradient, once, when the first worker reports the total norm.

        Args:
            total: the squared norm of the mean gradient, over all shards.

        Raises:
            MalformedFrame: not all of this shard's chunks are complete.
            ExchangeError: the optimizer failed.
        """
        if self._most_norm is None:
            raise MalformedFrame("this run does not clip gradients")
        with self._norm_lock:
            if all(self._sums[chunk].step >= step for chunk in self.chunks):
                return
            if self._norm_frame is None or self._norm_frame.header.step != step:
                raise MalformedFrame(f"the norm of step {step} came before its gradients")
            self._clip_and_apply(total)

    def _clip_and_apply(self, total: float) -> None:
        """Make the step of all chunks with the squared norm ``total``; the norms' lock is held."""
        assert self._most_norm is not None, "this run clips gradients"
        self._norm_parts.clear()
        factor = self._most_norm / (math.sqrt(total) + _CLIP_EPSILON)
        for chunk in self.chunks:
            with self._sums[chunk].lock:
                gradient = self._sums[chunk].total
                if not factor >= 1:  # NaN also clips, so that it stays visible
                    gradient.mul_(factor)
                self._apply(chunk, gradient)

    # --- Weights out -------------------------------------------------------------------------------------------------

    def _apply(self, chunk: int, gradient: Tensor) -> None:
        """Make the chunk's step and publish it; the chunk's lock is held."""
        entry = self._sums[chunk]
        step = entry.step + 1
        try:
            self._update.apply(chunk, gradient, entry.options)
        except Exception as error:  # the user's optimizer can raise anything, and may have changed any number
            cause = f"the optimizer's step {step} failed on chunk {chunk}: {type(error).__name__}: {error}"
            raise ExchangeError(cause, hint="correct the job's create_optimizer") from error
        codec = self.codecs.weights
        weights, replica = self._weights[chunk], self._replicas[chunk]
        if codec.lossy:
            difference = weights - replica
            payload = codec.encode(difference)
            codec.decode(payload, difference)
            replica.add_(difference)
            if self._keep is not None:
                self._keep(chunk, step, replica)
        else:  # the next step must not change data that is being sent
            payload = codec.encode(in_own_pages(weights) if self._keep is None else self._keep(chunk, step, weights))
        entry.applied()
        header = Header(Kind.WEIGHTS, step=step, chunk=chunk, codec=codec.code, length=len(payload))
        self.publish(Frame(header, payload.numpy().data))

    def _join(self, listener: Listener) -> None:
        if self._norm_frame is not None:
            listener.put(self._norm_frame)  # one of an older step is ignored

    def whole(self, chunk: int) -> Frame:
        """The current chunk, as every worker holds it."""
        with self._sums[chunk].lock:
            payload = self._replicas[chunk].clone().view(torch.uint8)
            header = Header(Kind.WHOLE, step=self._sums[chunk].step, chunk=chunk, length=len(payload))
        return Frame(header, payload.numpy().data)

    def newest_step(self) -> int:
        return max((entry.step for entry in self._sums.values()), default=0)

    def steps(self) -> frozenset[int]:
        """The steps that the chunks have made; two if only some chunks have made the newest."""
        return frozenset(entry.step for entry in self._sums.values())

    def begun_step(self) -> int:
        """The newest step of which any gradient has arrived."""
        return max((entry.step + bool(entry.counted) for entry in self._sums.values()), default=0)
