"""Connects a worker to the shards for gradients and weights: over the network, or through shared memory.

Both have the interface :class:`Channel`, so a worker does not need to know where the shards are.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from remote_agent.training.shared.slices import WHOLE, Part
from remote_agent.training.wire.client import ExchangeClient, Exchanging
from remote_agent.training.wire.codecs import EXACT, Codecs
from remote_agent.training.wire.endpoint import StreamInfo, place
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.shared_memory.client import SharedMemoryChannel
from remote_agent.training.wire.steps import Timings
from remote_agent.training.worker.gradients import Offer


class Channel(Protocol):
    """A worker's connection to all shards. One thread begins and finishes steps; another may contribute spares.

    Attributes:
        kind: its kind, in words.
        step: the newest step whose weights are complete here; -1: they have to be fetched first.
        gradient: float32, shape ``(numel,)``, on the worker's device: the buffer for the gradient SUM to contribute.
        weights: float32, shape ``(numel,)`` each: those of step t are in ``weights[t % 2]`` until step t + 1 is
            complete.
    """

    kind: str
    step: int
    gradient: Tensor
    weights: tuple[Tensor, Tensor]

    @property
    def offering(self) -> Callable[[int, float | None, Part], Offer] | None:
        """Makes, from a slice's number, weight and part, the object that takes final parts of :attr:`gradient`.

        None: slices are sent whole, by :meth:`contribute`. An offered slice must not be contributed too.
        """

    def begin(self, step: int, slices: int, samples: int, options: bytes = b"") -> None:
        """Open ``step``, the one after :attr:`step`, with the slices and samples of all workers.

        ``options``: what the scheduler has set in the step, encoded.
        """

    def contribute(self, index: int, weight: float | None = None, part: Part = WHOLE) -> None:
        """Contribute slice ``index``, or a ``part`` of it, from :attr:`gradient`; that must not change in the step.

        ``weight`` is the weight of its samples in the step's mean; None: the same for every slice.
        """

    def spare(self) -> Tensor:
        """Memory like :attr:`gradient` for a slice that another worker has lost."""

    def contribute_spare(self, index: int, gradient: Tensor, weight: float | None = None, part: Part = WHOLE) -> None:
        """Contribute slice ``index``, or a ``part`` of it, from ``gradient``, which :meth:`spare` returned."""

    def ready(self) -> bool:
        """Whether :meth:`finish` would not have to wait."""

    def finish(self, deadline: float) -> Timings:
        """Wait, up to ``deadline`` seconds, until all weights of the step are here.

        In the returned timings, ``push_s`` starts when this worker's whole gradient was ready.

        Raises:
            TrainingError: a shard is gone, or has failed.
        """

    def abandon(self) -> None:
        """Wake a thread that waits in :meth:`finish`, from any thread; the run continues with other shards."""

    def fetch(self) -> Tensor | None:
        """Get the whole weights of the newest step, after some were missed; None: :attr:`weights` already has them.

        Until :meth:`fetched` is called with them, the present weights do not change.

        Raises:
            TrainingError: a shard is gone, or has failed.
        """

    def fetched(self, newest: Tensor) -> None:
        """Store the weights that :meth:`fetch` returned."""

    def close(self) -> None:
        """Close the connection."""


class NetworkChannel:
    """A :class:`Channel` over TCP.

    Args:
        addresses: (host, port) of each shard, in the layout's order.
        secret: the secret of both ends.
        weights: the first weights, those of ``step``, bitwise the same as the shards'; on the worker's device.
        step: number of steps in them; None: they are not the run's weights, which have to be :meth:`fetched <fetch>`.
    """

    kind = "network"

    def __init__(
        self,
        layout: Layout,
        addresses: Sequence[tuple[str, int]],
        secret: bytes,
        weights: Tensor,
        codecs: Codecs,
        step: int | None,
    ) -> None:
        self.step = -1 if step is None else step
        self.gradient = torch.zeros_like(weights)
        self.weights = (torch.zeros_like(weights), torch.zeros_like(weights))
        self.weights[self.step % 2].copy_(weights)
        self._client = ExchangeClient(layout, addresses, secret, codecs, step=step)
        self._client.start()
        self._numel = layout.numel
        self._now: Exchanging | None = None
        self._whole_at: float | None = None
        self._fetched = 0

    def begin(self, step: int, slices: int, samples: int, options: bytes = b"") -> None:
        before, after = self.weights[(step - 1) % 2], self.weights[step % 2]
        self._now = self._client.begin(step, slices, samples, before, after, options)
        self._whole_at = None

    def contribute(self, index: int, weight: float | None = None, part: Part = WHOLE) -> None:
        self.offering(index, weight, part)(0, self._numel)

    def offering(self, index: int, weight: float | None = None, part: Part = WHOLE) -> Offer:
        assert self._now is not None, "a step has begun"
        contribution = self._now.contribute(index, self.gradient, weight, part=part)
        left = self._numel

        def offer(begin: int, end: int) -> None:
            nonlocal left
            left -= end - begin
            if not left:
                self._whole_at = time.monotonic()
            contribution.offer(begin, end)

        return offer

    def spare(self) -> Tensor:
        return torch.empty_like(self.gradient)

    def contribute_spare(self, index: int, gradient: Tensor, weight: float | None = None, part: Part = WHOLE) -> None:
        assert self._now is not None, "a step has begun"
        self._now.contribute(index, gradient, weight, part=part, feedback=False).offer(0, self._numel)

    def ready(self) -> bool:
        return self._now is not None and self._now.incoming.whole

    def finish(self, deadline: float) -> Timings:
        assert self._now is not None, "a step has begun"
        timings = self._now.finish(deadline)
        self.step = self._now.incoming.step
        begun = min((one.begun for one in self._now.contributed if one.begun is not None), default=None)
        if begun is None or self._whole_at is None:
            return timings
        return dataclasses.replace(timings, push_s=max(0.0, begun + timings.push_s - self._whole_at))

    def abandon(self) -> None:
        self._client.abandon()

    def fetch(self) -> Tensor:
        newest = torch.empty_like(self.gradient)
        self._fetched = self._client.fetch(newest)
        return newest

    def fetched(self, newest: Tensor) -> None:
        self.step = self._fetched
        self.weights[self.step % 2].copy_(newest)

    def close(self) -> None:
        self._client.close()


def open_channel(entry: StreamInfo, weights: Tensor, step: int | None) -> Channel:
    """Connect to the host's relay, or to the shards: through shared memory if the only shard is here, else by network.

    ``step`` is the number of steps in ``weights``; None: they are not the run's weights, which have to be fetched.

    Raises:
        TrainingError: the shard is here, and refuses this worker.
    """
    layout, shards = entry.layout, entry.shards
    if entry.relay is not None:
        return NetworkChannel(layout.of_one, [entry.relay], entry.secret, weights, EXACT, step)
    if len(shards) == 1 and shards[0].memory and shards[0].place == place():
        return SharedMemoryChannel(shards[0].memory, layout, EXACT.signature(layout), weights.device)
    return NetworkChannel(layout, [shard.address for shard in shards], entry.secret, weights, entry.codecs, step)
