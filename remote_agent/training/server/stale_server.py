"""Serves a shard of ``ssp`` or ``async`` on the network: each gradient is answered with new weights for its sender.

The frames are those of the synchronous exchange, with these meanings:

======== ==============================================================================================================
GRADIENT ``step``: the slice's number in the run, from 1; ``samples``: of this slice
WEIGHTS  one chunk of the weights as they are after the slice ``step`` was counted; all slices up to ``slice`` are in
FETCH    asks for WHOLE frames of all chunks as they are, at any time; ``step`` numbers a worker's requests
WHOLE    one chunk in fp32, for request ``step``; all slices up to ``slice`` are in
FETCHED  the last WHOLE is through
ASK      after a broken connection: which chunks of slice ``step`` are counted; these are answered once more
======== ==============================================================================================================
"""

from __future__ import annotations

import torch
from torch import Tensor

from remote_agent.training.server.service import Service
from remote_agent.training.server.stale_shard import StaleShard
from remote_agent.training.wire import frames
from remote_agent.training.wire.agreement import MARK
from remote_agent.training.wire.connection import Connection
from remote_agent.training.wire.errors import MalformedFrame
from remote_agent.training.wire.frames import Header, Kind
from remote_agent.training.wire.outbox import AllFetched, Answer, Frame, Outbox, WholeChunk


class StaleServer(Service[StaleShard]):
    """Serves a :class:`StaleShard`; see :class:`Service`."""

    def _signature(self) -> bytes:
        return self.shard.codecs.signature(self.shard.layout) + MARK

    def _joined(self, header: Header, held: bytes, outbox: Outbox) -> None:
        """Do nothing, since a worker gets only answers."""

    def _left(self, outbox: Outbox) -> None:
        """Do nothing, since nothing else uses the outbox."""

    def _contribute(self, header: Header, payload: Tensor, scratch: Tensor, outbox: Outbox) -> None:
        self.shard.contribute(header, payload, scratch)
        outbox.put(Answer(header.chunk, header.step))

    def _answer(self, header: Header, payload: bytes, outbox: Outbox) -> None:
        match header.kind:
            case Kind.FETCH:
                for chunk in self.shard.chunks:
                    outbox.put(WholeChunk(chunk, header.step))
                outbox.put(AllFetched())
            case Kind.ASK:
                counted = self.shard.counted(header.step)
                bits = frames.pack_bits(counted)
                outbox.put(Frame(Header(Kind.COUNTED, step=header.step, length=len(bits)), bits))
                for chunk, there in zip(self.shard.chunks, counted, strict=True):
                    if there:
                        outbox.put(Answer(chunk, header.step))
            case _:
                raise MalformedFrame(f"a worker sent a {header.kind.name} frame")

    def _send(self, connection: Connection, outbox: Outbox) -> None:
        buffer = torch.empty(self.shard.longest, dtype=torch.float32)
        while (item := outbox.get()) is not None:
            match item:
                case Answer(chunk, number):
                    frame = self.shard.answer(number, chunk, buffer)
                case WholeChunk(chunk, asked):
                    frame = self.shard.whole(asked, chunk, buffer)
                case AllFetched():
                    frame = Frame(Header(Kind.FETCHED))
                case Frame():
                    frame = item
            connection.send(frame.header, frame.payload)
