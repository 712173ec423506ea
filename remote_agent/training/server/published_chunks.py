"""Chunks whose new weights go to all connected workers, each as soon as it is updated. No network here."""

from __future__ import annotations

import mmap
import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from remote_agent.training.wire.codecs import Codecs
from remote_agent.training.wire.errors import ConnectionRefused, FellBehind, MalformedFrame
from remote_agent.training.wire.frames import Header
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.outbox import AllFetched, Frame, Item, WholeChunk


def in_own_pages(tensor: Tensor) -> Tensor:
    """Copy into separate pages, which return to the system as soon as the last worker has the data.

    The allocator would keep them for the thread that made them, which adds up with a thread for each worker.
    """
    pages = mmap.mmap(-1, tensor.nbytes)
    return torch.frombuffer(pages, dtype=tensor.dtype).copy_(tensor)


class Listener(Protocol):
    """A worker's outbox."""

    def put(self, item: Item) -> None:
        """Send this after all earlier items."""


class PublishedChunks:
    """See the module. The methods may be called from any thread.

    Args:
        step: the number of steps in the weights.

    Attributes:
        chunks: the numbers of the shard's chunks, in order.
    """

    def __init__(self, layout: Layout, number: int, codecs: Codecs, step: int) -> None:
        self.layout, self.number, self.codecs = layout, number, codecs
        self.chunks = layout.by_shard[number]
        self._held = frozenset(self.chunks)
        self._latest: dict[int, Frame] = {}
        self._published = dict.fromkeys(self.chunks, step)
        self._listeners: list[Listener] = []
        self._publishing = threading.Lock()

    @property
    def longest(self) -> int:
        """Numbers of the longest chunk; 0 where there is none."""
        return max((self.layout.chunks[chunk].numel for chunk in self.chunks), default=0)

    def payload_size(self, header: Header) -> int:
        """Bytes that a GRADIENT frame's payload must have.

        Raises:
            MalformedFrame: this shard has no such chunk, or the codec is not the run's.
        """
        if header.chunk not in self._held:
            raise MalformedFrame(f"shard {self.number} does not hold chunk {header.chunk}")
        if header.codec != self.codecs.gradients.code:
            raise MalformedFrame(f"a gradient in codec {header.codec}, not {self.codecs.gradients.name}")
        return self.codecs.gradients.size(self.layout.chunks[header.chunk].numel)

    @abstractmethod
    def contribute(self, header: Header, payload: Tensor, scratch: Tensor) -> bool:
        """Count a GRADIENT frame.

        Args:
            payload: of :meth:`payload_size` bytes (uint8).
            scratch: float32, as long as the longest chunk; overwritten.

        Returns:
            Whether it counted; not if it was counted before, or its step is over.

        Raises:
            MalformedFrame: it does not fit the step.
            ExchangeError: the optimizer failed.
        """

    @abstractmethod
    def counted(self, header: Header) -> list[bool]:
        """For each chunk, whether the slice or part that an ASK frame names is counted."""

    @abstractmethod
    def whole(self, chunk: int) -> Frame:
        """The chunk as every worker holds it now."""

    @abstractmethod
    def newest_step(self) -> int:
        """The newest step of any chunk."""

    def apply_clipped(self, step: int, total: float) -> None:
        """Clip by the norm that a worker sends; raises MalformedFrame if nothing is clipped here."""
        raise MalformedFrame(f"a norm of step {step} came, {total:g}, and this run does not clip")

    def publish(self, frame: Frame) -> None:
        """Send a chunk's new weights to all listeners, unless this step of the chunk was published before."""
        chunk, step = frame.header.chunk, frame.header.step
        with self._publishing:
            if self._published[chunk] >= step:
                return
            self._latest[chunk], self._published[chunk] = frame, step
            for listener in self._listeners:
                listener.put(frame)

    def _join(self, listener: Listener) -> None:
        """Send a new listener what all others have; the caller holds the lock."""

    def subscribe(self, listener: Listener, step: int, held: Sequence[bool]) -> None:
        """Send ``listener`` the chunks that its worker lacks, and then everything that is published.

        Args:
            step: the newest step of which the worker holds any chunk.
            held: for each chunk of the shard, whether the worker holds it at ``step``; otherwise at ``step - 1``.

        Raises:
            FellBehind: the shard no longer has the weights in between.
            ConnectionRefused: the worker is ahead of the shard.
        """
        with self._publishing:
            for chunk, has in zip(self.chunks, held, strict=True):
                at = step if has else step - 1
                now = self._published[chunk]
                if at > now:
                    raise ConnectionRefused(
                        f"the worker has step {at} of a chunk that is at step {now} on shard {self.number}",
                        hint="the shard was restored from an older state: fetch the weights again",
                    )
                if at < now - 1:
                    raise FellBehind(f"the worker has step {at} of a chunk that is at step {now}")
                if at == now - 1:
                    if chunk not in self._latest:  # restored at this step
                        raise FellBehind(f"step {now} of a chunk is there as a whole only")
                    listener.put(self._latest[chunk])
            self._join(listener)
            self._listeners.append(listener)

    def send_whole(self, listener: Listener) -> None:
        """Send all chunks whole, and then everything that is published after each of them."""
        with self._publishing:
            if listener not in self._listeners:
                self._listeners.append(listener)
            for chunk in self.chunks:
                listener.put(WholeChunk(chunk))
            listener.put(AllFetched())

    def unsubscribe(self, listener: Listener) -> None:
        """Send ``listener`` nothing more."""
        with self._publishing:
            if listener in self._listeners:
                self._listeners.remove(listener)
