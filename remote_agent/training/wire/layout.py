"""Cuts the flat buffer into chunks, and assigns the chunks to shards. Pure.

A chunk never crosses a boundary between parameter groups, so it has one set of optimizer options. Large chunks save the
fixed cost of frames; small ones shorten the start and the end of a step, when only one direction is busy (for about one
chunk per shard). Chunk k is on another shard than chunk k-1, so that any part of the gradient keeps all links busy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from remote_agent.planning.sharding import CHUNK_NUMBERS


@dataclass(frozen=True)
class Chunk:
    """Numbers ``begin`` to ``end`` (exclusive) of the flat buffer; they belong to parameter group ``group``."""

    begin: int
    end: int
    group: int

    @property
    def numel(self) -> int:
        """Numbers in the chunk."""
        return self.end - self.begin


@dataclass(frozen=True)
class Layout:
    """The cut that all workers and shards of a run share.

    Attributes:
        chunks: in the order of the buffer, without gaps.
        owners: for each chunk the number of its shard.
        shards: number of shards; some may have no chunk.
    """

    chunks: tuple[Chunk, ...]
    owners: tuple[int, ...]
    shards: int

    @property
    def numel(self) -> int:
        """Numbers in the buffer."""
        return self.chunks[-1].end if self.chunks else 0

    @cached_property
    def by_shard(self) -> tuple[tuple[int, ...], ...]:
        """For each shard the numbers of its chunks, ascending."""
        lists: list[list[int]] = [[] for _ in range(self.shards)]
        for chunk, owner in enumerate(self.owners):
            lists[owner].append(chunk)
        return tuple(tuple(chunks) for chunks in lists)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that differ for different cuts; both ends of a connection compare them."""
        text = repr((self.shards, [(chunk.begin, chunk.end, chunk.group) for chunk in self.chunks], self.owners))
        return hashlib.sha256(text.encode()).digest()[:16]

    @property
    def of_one(self) -> Layout:
        """The same chunks with one shard for all of them: as a relay's workers know it."""
        return Layout(self.chunks, (0,) * len(self.chunks), 1)

    def shard_numel(self, shard: int) -> int:
        return sum(self.chunks[chunk].numel for chunk in self.by_shard[shard])

    def overlapping(self, begin: int, end: int) -> range:
        """The chunks that contain any of the numbers ``begin`` to ``end``."""
        if begin >= end:
            return range(0)
        return range(self._holding(begin), self._holding(end - 1) + 1)

    def _holding(self, number: int) -> int:
        low, high = 0, len(self.chunks) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.chunks[middle].begin <= number else (low, middle - 1)
        return low


def plan_layout(groups: Sequence[int], weights: Sequence[float], chunk_numbers: int = CHUNK_NUMBERS) -> Layout:
    """Cut a buffer into chunks of nearly equal size and deal them to shards in proportion to ``weights``.

    Args:
        groups: numbers of each parameter group, in the order of the buffer; a group may be empty.
        weights: one for each shard: its part of the buffer, relative to the others (0: none). The part of shard i is
            within one chunk of ``weights[i] / sum(weights)``.
        chunk_numbers: most numbers in a chunk.

    Raises:
        ValueError: no shard has a weight above 0, or a number is negative.
    """
    if chunk_numbers < 1 or any(numel < 0 for numel in groups):
        raise ValueError("a chunk holds at least one number, and a group no negative count of them")
    if any(weight < 0 for weight in weights) or not sum(weights) > 0:
        raise ValueError("a shard's weight is 0 or more, and at least one is above 0")
    chunks: list[Chunk] = []
    begin = 0
    for group, numel in enumerate(groups):
        pieces = -(-numel // chunk_numbers)
        cuts = [begin + numel * piece // pieces for piece in range(pieces + 1)] if pieces else []
        chunks += [Chunk(left, right, group) for left, right in pairwise(cuts)]
        begin += numel
    return Layout(tuple(chunks), _deal(chunks, weights), len(weights))


def _deal(chunks: Sequence[Chunk], weights: Sequence[float]) -> tuple[int, ...]:
    """Give each chunk to the shard that is furthest below its part of the chunks so far, so that shards alternate."""
    total = sum(weights)
    held = [0.0] * len(weights)
    dealt = 0
    owners: list[int] = []
    for chunk in chunks:
        dealt += chunk.numel
        owner = max(
            range(len(weights)),
            key=lambda shard: (weights[shard] / total * dealt - held[shard], -shard),
        )
        held[owner] += chunk.numel
        owners.append(owner)
    return tuple(owners)
