"""Runs a worker's side of ``ssp`` and ``async``: sends a slice's gradient to all shards, and receives new weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from remote_agent.training.wire.agreement import MARK, Codecs
from remote_agent.training.wire.codecs import Codec
from remote_agent.training.wire.deadlines import FETCH_S
from remote_agent.training.wire.errors import ExchangeError, MalformedFrame, StepIncomplete
from remote_agent.training.wire.exchanging import Exchanging
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.outbox import Frame
from remote_agent.training.wire.shard_links import ShardLinks
from remote_agent.training.wire.steps import Contribution, IncomingWeights


class FreshWeights(IncomingWeights):
    """Requested weights: the answer to a slice, or to a pull.

    Args:
        kind: kind of their frames: WEIGHTS for a slice, WHOLE for a pull.

    Attributes:
        watermark: all slices up to this one are in every chunk that has arrived.
    """

    def __init__(self, layout: Layout, kind: Kind, step: int, codec: Codec, out: Tensor) -> None:
        super().__init__(layout, step, codec, out)
        self.kind = kind
        self.watermark: int | None = None

    def awaits(self, header: Header) -> bool:
        return header.kind is self.kind and super().awaits(header)

    def arrived(self, header: Header) -> None:
        with self._lock:
            if super().awaits(header):
                self.watermark = header.slice if self.watermark is None else min(self.watermark, header.slice)
        super().arrived(header)


class StaleClient(ShardLinks[FreshWeights]):
    """A worker's connections to all shards; a context manager. One thread uses it.

    Attributes:
        watermark: all slices up to this one are in the newest weights.
    """

    def __init__(self, layout: Layout, addresses: Sequence[tuple[str, int]], token: bytes, codecs: Codecs) -> None:
        super().__init__(layout, addresses, token, codecs)
        self.watermark = 0
        self._pulls = 0
        self._incoming: FreshWeights | None = None
        self._now: Exchanging[FreshWeights] | None = None

    # --- For the trainer ---------------------------------------------------------------------------------------------

    def exchange(
        self,
        number: int,
        samples: int,
        gradient: Tensor,
        out: Tensor,
        weight: float | None = None,
        *,
        feedback: bool = True,
    ) -> Exchanging[FreshWeights]:
        """Send a slice's gradient; the weights that contain it arrive from now on, until ``finish``.

        Args:
            number: the slice's number, from 1; unique in the run.
            gradient: the SUM of their gradients: float32, shape ``(layout.numel,)``; do not change it before ``finish``
                has returned.
            out: gets the new weights: another buffer of the same shape and device, which is not read meanwhile.
            weight: weight of the samples in their mean; None: each has the same.
            feedback: as for :meth:`Exchanging.contribute`.

        Raises:
            ExchangeError: another slice is in transfer, or a shard can't be reached.
        """
        with self._changed:
            incoming = self._await(Kind.WEIGHTS, number, out)
            exchanging = self._now = Exchanging(self, incoming, 0, samples)
        exchanging.contribute(0, gradient, weight, feedback=feedback).offer(0, self.layout.numel)
        return exchanging

    def pull(self, out: Tensor, deadline: float = FETCH_S) -> None:
        """Get the current weights, in fp32.

        They contain every slice that all shards had counted before the call, and maybe parts of others.

        Args:
            out: float32, shape ``(layout.numel,)``: gets the weights.
            deadline: seconds.

        Raises:
            ExchangeError: a slice is in transfer, a shard can't be reached, or the deadline passed.
        """
        with self._changed:
            self._pulls += 1
            incoming = self._await(Kind.WHOLE, self._pulls, out)
        for link in self._links:
            link.control(Frame(Header(Kind.FETCH, step=incoming.step)))
        self.wait(incoming, deadline)

    def _await(self, kind: Kind, number: int, out: Tensor) -> FreshWeights:
        """Accept the weights for ``number`` from now on; the lock is held."""
        self._check()
        if self._incoming is not None:
            raise ExchangeError("one exchange can't begin while another one is open")
        self._incoming = FreshWeights(self.layout, kind, number, self._codecs.weights, out)
        return self._incoming

    # --- For a slice's exchange --------------------------------------------------------------------------------------

    def wait(self, incoming: FreshWeights, deadline: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: incoming.whole or self._failure is not None, deadline)
            if not incoming.whole:
                self._check()
                missing = f"{incoming.has.count(False)} of {len(incoming.has)} chunks of the weights"
                raise StepIncomplete(f"{missing} are not here after {deadline:g} s", hint="look at the shards' hosts")
            self._incoming = self._now = None
            self.watermark = incoming.watermark or 0
        for link in self._links:
            link.forget_gradients()

    # --- For the links -----------------------------------------------------------------------------------------------

    def hello(self, shard: int) -> tuple[Frame, bool]:
        signature = self._codecs.signature(self.layout) + MARK
        return Frame(Header(Kind.HELLO, length=len(signature)), signature), False

    def request(self, held: bool) -> Frame | None:
        incoming = self._incoming
        if incoming is None or incoming.kind is not Kind.WHOLE:
            return None
        return Frame(Header(Kind.FETCH, step=incoming.step))

    def contributions(self) -> Sequence[Contribution]:
        with self._changed:
            return () if self._now is None else self._now.contributed

    def awaited(self) -> FreshWeights | None:
        return self._incoming

    def take(self, header: Header, payload: Tensor) -> None:
        incoming = self._incoming
        if incoming is not None:
            incoming.decode(header, payload)  # without the lock: each link has chunks of its own
            self.wake_if_whole(incoming)

    def take_newest(self, shard: int, step: int) -> None:
        """Ignore a FETCHED frame; the WHOLE frames before it are enough."""

    def take_norm(self, shard: int, step: int, part: float) -> None:
        raise MalformedFrame("a shard that does not wait knows no norm of all gradients")

    def fell_behind(self) -> None:
        """Do nothing: a shard without steps never sends this, and the next answer brings all weights anyway."""
