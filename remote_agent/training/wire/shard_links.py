"""Implements the common base of a worker's exchanges: a link to each shard, the gradients' residual, one failure."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from remote_agent.training.wire.agreement import Codecs
from remote_agent.training.wire.codecs import Codec
from remote_agent.training.wire.errors import ExchangeError, MalformedFrame
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.link import Link, Worker
from remote_agent.training.wire.steps import Contribution, IncomingWeights

Awaited = TypeVar("Awaited", bound=IncomingWeights)


class ShardLinks(Worker, Generic[Awaited]):
    """A worker's connections to all shards; a context manager. Subclasses decide what is sent and awaited.

    Args:
        addresses: (host, port) of each shard, in the layout's order.
        token: the cluster's secret.

    Attributes:
        residual: the error of the gradient codec so far; None: there is none yet, or the codec needs no feedback.
    """

    def __init__(self, layout: Layout, addresses: Sequence[tuple[str, int]], token: bytes, codecs: Codecs) -> None:
        self.residual: Tensor | None = None
        self.layout, self._codecs = layout, codecs
        self._changed = threading.Condition(threading.RLock())
        self._failure: ExchangeError | None = None
        self._links = []
        for number, (chunks, address) in enumerate(zip(layout.by_shard, addresses, strict=True)):
            if chunks:
                longest = 4 * max(layout.chunks[chunk].numel for chunk in chunks)
                longest = max(longest, max(codecs.weights.size(layout.chunks[chunk].numel) for chunk in chunks))
                self._links.append(Link(self, number, chunks, longest, address, token))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Connect to all shards, in the background."""
        for link in self._links:
            link.start()

    def abandon(self) -> None:
        """Wake the threads that wait here, without waiting, from any thread; the run continues with other shards."""
        self.failed(ExchangeError("the exchange was given up: the run goes on with other shards"))
        for link in self._links:
            link.close(0.0)

    def close(self) -> None:
        for link in self._links:
            link.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- For an exchange that is under way ---------------------------------------------------------------------------

    @abstractmethod
    def wait(self, incoming: Awaited, deadline: float) -> None:
        """Wait until the weights are complete; raises ExchangeError."""

    @property
    def gradient_codec(self) -> Codec:
        return self._codecs.gradients

    def feedback_for(self, gradient: Tensor) -> Tensor:
        if self.residual is None:
            self.residual = torch.zeros_like(gradient)
        return self.residual

    def push(self, contribution: Contribution, chunks: Sequence[int]) -> None:
        for link in self._links:
            own = [chunk for chunk in chunks if self.layout.owners[chunk] == link.number]
            if own:
                link.push(contribution, own)

    def bytes_moved(self) -> tuple[int, int]:
        moved = [link.bytes_moved() for link in self._links]
        return sum(out for out, _ in moved), sum(into for _, into in moved)

    def last_sent(self) -> float:
        return max((link.last_sent for link in self._links), default=0.0)

    # --- For the links -----------------------------------------------------------------------------------------------

    @abstractmethod
    def awaited(self) -> Awaited | None:
        """The weights that come in now."""

    def has(self, step: int, chunk: int) -> bool:
        incoming = self.awaited()
        return incoming is None or incoming.step != step or incoming.has[chunk]

    def memory(self, header: Header) -> memoryview | None:
        incoming = self.awaited()
        return None if incoming is None else incoming.memory(header)

    def arrived(self, header: Header) -> None:
        incoming = self.awaited()
        if incoming is not None and incoming.awaits(header):
            incoming.arrived(header)
            self.wake_if_whole(incoming)

    def wake_if_whole(self, incoming: Awaited) -> None:
        if incoming.whole:
            with self._changed:
                self._changed.notify_all()

    def payload_size(self, header: Header) -> int:
        if header.chunk >= len(self.layout.chunks):
            raise MalformedFrame(f"there is no chunk {header.chunk}")
        numel = self.layout.chunks[header.chunk].numel
        if header.kind is Kind.WHOLE:
            return 4 * numel
        if header.codec != self._codecs.weights.code:
            raise MalformedFrame(f"weights in codec {header.codec}, not {self._codecs.weights.name}")
        return self._codecs.weights.size(numel)

    def failed(self, error: ExchangeError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
