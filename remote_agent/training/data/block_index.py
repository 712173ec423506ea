"""Blocks of samples in Ray's object store: which block holds which samples, and how the workers get at them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from remote_agent.errors import first_line
from remote_agent.training.data import blocks
from remote_agent.training.data.blocks import Batch, Block
from remote_agent.training.deadlines import DATA_S
from remote_agent.training.errors import JobError
from remote_agent.training.shared import rpc
from remote_agent.training.shared.rpc import Actor, Ref
from remote_agent.training.shared.slices import Indices

_KEPT = 8
"""Blocks that a worker keeps."""


class BlockIndex:
    """Ray actor: which samples lie in which block; an early request waits."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, list[Any]]] = {}
        self._changed = asyncio.Condition()

    async def put(self, begin: int, end: int, held: list[Any]) -> None:
        """The samples ``begin`` to ``end`` are the block whose ref is in ``held``."""
        async with self._changed:
            self._blocks[begin] = (end, held)
            self._changed.notify_all()

    async def holding(self, begin: int, end: int, deadline: float) -> list[tuple[int, int, list[Any]]] | None:
        """(begin, end, [ref]) of the blocks with the samples ``begin`` to ``end``; None when they did not come."""

        def found() -> list[tuple[int, int, list[Any]]]:
            return [(first, *entry) for first, entry in self._blocks.items() if first < end and entry[0] > begin]

        async with self._changed:
            try:
                complete = self._changed.wait_for(lambda: any(last >= end for _, last, _ in found()))
                await asyncio.wait_for(complete, deadline)
            except TimeoutError:
                return None
            return found()

    async def drop(self, begins: Sequence[int]) -> None:
        """These blocks will not be asked for again."""
        for begin in begins:
            self._blocks.pop(begin, None)


class BlockReader:
    """The worker's end: what ``data.fetch`` takes batches from, by one thread at a time.

    Args:
        index: the actor.
        start: the first sample of the run.
        ready: how many samples are there from the beginning. Indices below ``start`` are those of the measurement.
    """

    def __init__(self, index: Actor, start: int, ready: int) -> None:
        self._index, self._start, self._ready = index, start, ready
        self._kept: OrderedDict[int, Block] = OrderedDict()

    def __len__(self) -> int:
        return self._ready

    def batch(self, indices: Any) -> Batch:
        """The samples at these positions (int64 tensor)."""
        positions: Indices = indices.numpy()
        positions = np.where(positions < self._start, positions + self._start, positions)
        found = self._blocks(int(positions.min()), int(positions.max()) + 1)
        try:
            return blocks.gather(positions, found)
        except (RuntimeError, ValueError, KeyError) as error:
            raise JobError(
                f"batches that the data yielded can't be joined to steps of other sizes: {first_line(error)}",
                hint="leave batch_size out, with strategy=sync or allreduce: then each batch is a step as it comes",
            ) from error

    def _blocks(self, begin: int, end: int) -> list[Block]:
        kept = [block for block in self._kept.values() if block.begin < end and block.end > begin]
        if sum(min(block.end, end) - max(block.begin, begin) for block in kept) == end - begin:
            return kept
        entries = rpc.get(self._index.call("holding", begin, end, DATA_S), 2 * DATA_S)
        if entries is None:
            raise JobError(f"the data gave no sample {end} within {DATA_S:.0f} s", hint="look at the data's own code")
        result = []
        for first, last, (raw,) in entries:
            block = self._kept.pop(first, None) or Block(first, last, rpc.get(Ref(raw), DATA_S))
            self._kept[first] = block
            result.append(block)
        while len(self._kept) > max(_KEPT, len(result)):
            self._kept.popitem(last=False)
        return result
