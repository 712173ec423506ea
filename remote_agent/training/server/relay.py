"""A relay between a host's workers and all shards: to the workers it is a shard, to the shards a worker.

Without it, a host with several devices sends a whole gradient for each of them over its link, and receives the weights
as often. With it, each worker sends its part of the host's slice to the relay, within the host. The relay sums all
parts and sends the sum to the shards as one slice, chunk by chunk. Each chunk of new weights arrives once.

The relay counts each part once, as a shard counts each slice once (``sums``), and a sum always contains all parts. So a
shard may get a slice from the relay, or from a worker that computes all parts of it: both are the same slice. A whole
slice is forwarded as it is.

The relay is in the process of a shard on its host, and lives as long: if it is lost, a shard is lost with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from remote_agent.training.deadlines import EXCHANGE_S
from remote_agent.training.server.published_chunks import Listener, PublishedChunks, in_own_pages
from remote_agent.training.server.shard_server import ShardServer
from remote_agent.training.server.sums import ChunkSum
from remote_agent.training.wire.client import ExchangeClient, Exchanging
from remote_agent.training.wire.codecs import EXACT, Codecs
from remote_agent.training.wire.deadlines import CLOSE_S, RECONNECT_PAUSE_MOST_S
from remote_agent.training.wire.errors import ExchangeError, FellBehind, MalformedFrame
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.layout import Layout
from remote_agent.training.wire.outbox import Frame
from remote_agent.training.wire.steps import Contribution

LOG = logging.getLogger(__name__)


class _Summed:
    """The sum of the parts of one slice in one step."""

    def __init__(self, layout: Layout, step: int) -> None:
        self.gradient = torch.empty(layout.numel, dtype=torch.float32)
        self.chunks = [ChunkSum(self.gradient[chunk.begin : chunk.end], step - 1) for chunk in layout.chunks]
        self.sent: Contribution | None = None


class Relay(PublishedChunks):
    """See the module. One thread calls :meth:`run`; the other methods may be called from any thread.

    Args:
        addresses: those of the shards, in the layout's order.
        token: the cluster's secret.
        codecs: the codecs between relay and shards.
        weights: the first weights, bit-identical to those of the shards.
        step: the number of steps in them.
    """

    def __init__(
        self,
        layout: Layout,
        addresses: Sequence[tuple[str, int]],
        token: bytes,
        codecs: Codecs,
        weights: Tensor,
        step: int,
    ) -> None:
        super().__init__(layout.of_one, 0, EXACT, step)
        self._whole_layout, self._addresses, self._token, self._network = layout, tuple(addresses), token, codecs
        self._sides = (torch.empty(layout.numel), torch.empty(layout.numel))
        self._sides[step % 2].copy_(weights)
        self._ready = True
        self._fetching: list[Listener] = []
        self._turn = threading.Lock()  # for the three below, and to send sums
        self._sums: dict[tuple[int, int, int], _Summed] = {}
        self._exchange: Exchanging | None = None
        self._early: list[tuple[Header, _Summed]] = []
        self._closed = threading.Event()
        self._client: ExchangeClient | None = None
        self._hold(step)

    def _hold(self, step: int) -> None:
        """Publish all chunks after ``step``."""
        for chunk in self.chunks:
            self._latest[chunk], self._published[chunk] = self._frame(chunk, step), step

    def _frame(self, number: int, step: int) -> Frame:
        """A chunk's current weights in memory of their own, which the next step but one does not overwrite."""
        chunk = self.layout.chunks[number]
        payload = in_own_pages(self._sides[step % 2][chunk.begin : chunk.end]).view(torch.uint8)
        header = Header(Kind.WEIGHTS, step=step, chunk=number, codec=EXACT.weights.code, length=len(payload))
        return Frame(header, payload.numpy().data)

    # --- For the workers ---------------------------------------------------------------------------------------------

    def contribute(self, header: Header, payload: Tensor, scratch: Tensor) -> bool:
        """Count a part of a slice, or a whole slice; the last part of a chunk sends the chunk's sum."""
        part = Header(
            Kind.GRADIENT,
            step=header.step,
            slice=header.part,
            slices=max(1, header.parts),
            samples=header.samples,
            weight=header.weight,
        )
        with self._publishing:
            now = self._published[header.chunk]
        if header.step <= now:
            return False
        if header.step > now + 1:
            raise MalformedFrame(f"a gradient of step {header.step} came to a relay that is at step {now}")
        with self._turn:
            summed = self._sums.get(key := _key(header))
            if summed is None:
                summed = self._sums[key] = _Summed(self.layout, header.step)
        entry = summed.chunks[header.chunk]
        with entry.lock:
            new = entry.add(part, EXACT.gradients, payload, scratch)
            is_whole = new and entry.whole
        if is_whole:
            with self._turn:
                self._send(header, summed)
        return new

    def counted(self, header: Header) -> list[bool]:
        with self._turn:
            summed = self._sums.get(_key(header))
        with self._publishing:
            over = [self._published[chunk] >= header.step for chunk in self.chunks]
        if summed is None:
            return over
        return [over[chunk] or header.part in summed.chunks[chunk].counted for chunk in self.chunks]

    def _send(self, header: Header, summed: _Summed) -> None:
        """Send a chunk that has all parts; the caller holds ``_turn``."""
        exchange = self._exchange
        if exchange is None or exchange.incoming.step < header.step:
            self._early.append((header, summed))
            return
        if exchange.incoming.step > header.step:
            return
        if summed.sent is None:
            exchange.is_cut(header.slices, header.samples, header.options)
            weight = summed.chunks[header.chunk].weight
            # A whole slice was reissued: the shards may count it from elsewhere.
            summed.sent = exchange.contribute(header.slice, summed.gradient, weight, feedback=header.parts > 0)
        chunk = self.layout.chunks[header.chunk]
        summed.sent.offer(chunk.begin, chunk.end)

    def whole(self, chunk: int) -> Frame:
        with self._publishing:
            latest = self._latest[chunk]
        step, length = latest.header.step, latest.header.length
        return Frame(Header(Kind.WHOLE, step=step, chunk=chunk, length=length), latest.payload)

    def newest_step(self) -> int:
        with self._publishing:
            return max(self._published.values(), default=0)

    def subscribe(self, listener: Listener, step: int, held: Sequence[bool]) -> None:
        if not self._ready:
            raise FellBehind("the relay has missed steps itself")
        super().subscribe(listener, step, held)

    def send_whole(self, listener: Listener) -> None:
        with self._publishing:
            if not self._ready:
                self._fetching.append(listener)
                return
        super().send_whole(listener)

    def unsubscribe(self, listener: Listener) -> None:
        super().unsubscribe(listener)
        with self._publishing:
            self._fetching = [each for each in self._fetching if each is not listener]

    # --- As a worker of the shards -----------------------------------------------------------------------------------

    def run(self, server: ShardServer) -> None:
        """Receive each step's weights until :meth:`close`; if steps are missed, disconnect ``server``'s workers."""
        step: int | None = self.newest_step()
        while not self._closed.is_set():
            client = ExchangeClient(self._whole_layout, self._addresses, self._token, self._network, step=step)
            with self._turn:
                self._client = client
            with client:
                try:
                    while not self._closed.is_set():
                        self._keep_up(client, server)
                except ExchangeError as error:
                    LOG.info("the relay lost a shard: %s", error)
                    self._interrupt(server)
            step = None
            self._closed.wait(RECONNECT_PAUSE_MOST_S)

    def _keep_up(self, client: ExchangeClient, server: ShardServer) -> None:
        """Receive one step's weights, or the newest weights if that step was missed."""
        try:
            if client.step is None:
                raise FellBehind("it has no weights")
            step = client.step + 1
            exchange = client.begin(step, 0, 0, self._sides[(step - 1) % 2], self._sides[step % 2])
            incoming = exchange.incoming
            incoming.here = lambda chunk: self.publish(self._frame(chunk, step))
            for chunk, is_here in enumerate(incoming.has):
                if is_here:
                    incoming.here(chunk)
            self._go_on(exchange)
            client.wait(incoming, EXCHANGE_S)
        except FellBehind:
            self._interrupt(server)
            newest = torch.empty(self.layout.numel)
            step = client.fetch(newest)
            self._sides[step % 2].copy_(newest)
            with self._publishing:
                self._hold(step)
                self._ready = True
                fetching, self._fetching = self._fetching, []
            for listener in fetching:
                self.send_whole(listener)

    def _go_on(self, exchange: Exchanging) -> None:
        """Send the complete sums of a step whose exchange is open now, and drop those of earlier steps."""
        with self._turn:
            self._exchange = exchange
            self._sums = {key: each for key, each in self._sums.items() if key[0] >= exchange.incoming.step}
            early, self._early = self._early, []
            for header, summed in early:
                self._send(header, summed)

    def _interrupt(self, server: ShardServer) -> None:
        """Steps were missed: the workers have to fetch the weights, once the relay has them."""
        with self._publishing:
            self._ready = False
            self._listeners.clear()
        with self._turn:
            self._exchange = None
            self._sums.clear()
            self._early.clear()
        server.disconnect()

    def close(self) -> None:
        """End :meth:`run`, from any thread."""
        self._closed.set()
        with self._turn:
            client = self._client
        if client is not None:
            client.abandon()


class RelayServer(ShardServer):
    """Serve a :class:`Relay` to the workers of its host; see :class:`ShardServer`."""

    def __init__(self, relay: Relay, token: bytes, host: str) -> None:
        super().__init__(relay, token, host)
        self._relay = relay
        self._keeping_up = threading.Thread(target=relay.run, args=(self,), name="relay", daemon=True)

    def start(self) -> None:
        self._keeping_up.start()
        super().start()

    def close(self) -> None:
        self._relay.close()
        super().close()
        if self._keeping_up.is_alive():
            self._keeping_up.join(CLOSE_S)


def _key(header: Header) -> tuple[int, int, int]:
    """Identify a slice of a step, whole or in parts."""
    return header.step, header.slice, header.parts
