"""Collects the whole weights for a worker that joins while the others continue. It has no network code.

Each shard sends its chunks whole, each at its current step, and then the following steps. All chunks are brought to the
newest step that any shard had, by the same additions that all other workers make.
"""

from __future__ import annotations

from torch import Tensor

from remote_agent.training.wire.agreement import decode
from remote_agent.training.wire.codecs import Codec
from remote_agent.training.wire.frames import Header
from remote_agent.training.wire.layout import Layout

_NOT_HERE = -1


class Fetching:
    """The state of one fetch; calls are made one at a time.

    Args:
        out: float32, shape ``(layout.numel,)``: gets the weights.

    Attributes:
        later: WEIGHTS frames beyond the step that is fetched: (header, payload).
    """

    def __init__(self, layout: Layout, codec: Codec, out: Tensor) -> None:
        if out.shape != (layout.numel,):
            raise ValueError(f"weights are one flat float32 buffer of {layout.numel} numbers")
        self.later: list[tuple[Header, Tensor]] = []
        self._layout, self._codec, self._out = layout, codec, out
        self._steps = [_NOT_HERE] * len(layout.chunks)
        self._newest: dict[int, int] = {}
        self._shards = set(layout.owners)

    @property
    def step(self) -> int | None:
        """The step to which all chunks are brought; None until every shard has sent its own."""
        return max(self._newest.values(), default=0) if self._shards <= self._newest.keys() else None

    @property
    def whole(self) -> bool:
        step = self.step
        return step is not None and all(at == step for at in self._steps)

    def take_whole(self, header: Header, payload: Tensor) -> None:
        chunk = self._layout.chunks[header.chunk]
        self._out[chunk.begin : chunk.end].copy_(payload.view(self._out.dtype))
        self._steps[header.chunk] = header.step

    def take_newest(self, shard: int, step: int) -> None:
        self._newest[shard] = step
        self._advance()

    def take_weights(self, header: Header, payload: Tensor) -> None:
        """Take a WEIGHTS frame; ``payload`` is kept."""
        if self._steps[header.chunk] != _NOT_HERE:
            self.later.append((header, payload))
            self._advance()

    def _advance(self) -> None:
        """Apply the steps up to the fetched one."""
        target = self.step
        if target is None:
            return
        remaining = []
        for header, payload in self.later:
            if header.step > target:
                remaining.append((header, payload))
            elif header.step == self._steps[header.chunk] + 1:
                self._add(header, payload)
                self._steps[header.chunk] = header.step
        self.later = remaining

    def _add(self, header: Header, payload: Tensor) -> None:
        chunk = self._layout.chunks[header.chunk]
        target = self._out[chunk.begin : chunk.end]
        decoded = target.new_empty(chunk.numel)
        decode(self._codec, payload.to(target.device), decoded)
        if self._codec.lossy:
            target.add_(decoded)
        else:
            target.copy_(decoded)
