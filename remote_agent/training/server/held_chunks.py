"""Implements the base of every kind of shard for the network: its chunks, and the frames for them."""

from __future__ import annotations

from remote_agent.training.wire.agreement import Codecs
from remote_agent.training.wire.errors import MalformedFrame
from remote_agent.training.wire.frames import Header
from remote_agent.training.wire.layout import Layout


class HeldChunks:
    """The chunks that one shard holds; ``chunks``: their numbers, in order."""

    def __init__(self, layout: Layout, number: int, codecs: Codecs) -> None:
        self.layout, self.number, self.codecs = layout, number, codecs
        self.chunks = layout.by_shard[number]
        self._held = frozenset(self.chunks)

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
