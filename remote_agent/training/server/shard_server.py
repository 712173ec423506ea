"""Serves a synchronous shard on the network."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from remote_agent.training.server.published_chunks import PublishedChunks
from remote_agent.training.server.service import Service
from remote_agent.training.wire import frames
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.errors import MalformedFrame
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.outbox import AllFetched, Answer, Frame, Outbox, WholeChunk


class ShardServer(Service[PublishedChunks]):
    """Serves a :class:`~remote_agent.training.server.shard.Shard`; see :class:`Service`."""

    def _signature(self) -> bytes:
        return self.shard.codecs.signature(self.shard.layout)

    def _joined(self, header: Header, held: bytes, outbox: Outbox) -> None:
        if held:
            self.shard.subscribe(outbox, header.step, frames.unpack_bits(held, len(self.shard.chunks)))

    def _left(self, outbox: Outbox) -> None:
        self.shard.unsubscribe(outbox)

    def _contribute(self, header: Header, payload: Tensor, scratch: Tensor, outbox: Outbox) -> None:
        self.shard.contribute(header, payload, scratch)

    def _answer(self, header: Header, payload: bytes, outbox: Outbox) -> None:
        match header.kind:
            case Kind.FETCH:
                self.shard.send_whole(outbox)
            case Kind.ASK:
                bits = frames.pack_bits(self.shard.counted(header))
                outbox.put(Frame(dataclasses.replace(header, kind=Kind.COUNTED, length=len(bits)), bits))
            case Kind.NORM_TOTAL:
                self.shard.apply_clipped(header.step, frames.unpack_number(payload))
            case _:
                raise MalformedFrame(f"a worker sent a {header.kind.name} frame")

    def _send(self, connection: Connection, outbox: Outbox) -> None:
        whole_at: dict[int, int] = {}
        while (item := outbox.get()) is not None:
            match item:
                case WholeChunk(chunk):
                    frame = self.shard.whole(chunk)
                    whole_at[chunk] = frame.header.step
                case AllFetched():
                    frame = Frame(Header(Kind.FETCHED, step=self.shard.newest_step()))
                case Answer():
                    raise AssertionError("a synchronous shard publishes to all workers; it answers none alone")
                case Frame():
                    frame = item
                    if frame.header.kind is Kind.WEIGHTS and frame.header.step <= whole_at.get(frame.header.chunk, -1):
                        continue  # it is in what was sent whole
            connection.send(frame.header, frame.payload)
