"""Data that can only be read from its beginning: read on the coordinator, in order, and handed out to the workers.

A thread reads ahead, a few batches at most, and puts blocks of samples into Ray's object store. A small actor beside
the coordinator (:class:`Shelf`) tells the workers which block holds which samples; a block is dropped once all of its
samples are counted. So each sample is used once, also when a worker dies: its slice is fetched again by another one.

Where the data ends and can be read again (a ``DataLoader``, a generator *function*), it is; an iterator that is at its
end ends the run. A run that goes on from a checkpoint reads on after the samples that were used, by passing over them:
that they are the same ones as the first time is up to the data.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from remote_agent.training import job, rpc
from remote_agent.training.config import TrainingConfig
from remote_agent.training.data import blocks, extent
from remote_agent.training.data.blocks import Batch, Block
from remote_agent.training.data.order import Indices, SampleOrder
from remote_agent.training.data.record import SliceSpan
from remote_agent.training.deadlines import CLOSE_S, DATA_S
from remote_agent.training.errors import JobError
from remote_agent.training.placing import placement
from remote_agent.training.rpc import Actor, Ref

AHEAD = 4
"""Batches that are read ahead of the training, at most."""

_KEPT = 8
"""Blocks that a worker keeps."""

BATCHES_HINT = (
    "yield batches (x, y) whose first dimension is the batch, or set batched = False on it if it yields samples"
)


class Shelf:
    """Ray actor: which samples lie in which block; whoever asks early waits."""

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
        """Nobody will ask for these blocks again."""
        for begin in begins:
            self._blocks.pop(begin, None)


class ShelvedData:
    """The worker's end: what ``data.fetch`` takes batches from, by one thread at a time.

    Args:
        shelf: the actor.
        start: the first sample of the run.
        ready: how many samples are there from the beginning. Indices below ``start`` are those of the measurement.
    """

    def __init__(self, shelf: Actor, start: int, ready: int) -> None:
        self._shelf, self._start, self._ready = shelf, start, ready
        self._kept: OrderedDict[int, Block] = OrderedDict()

    def __len__(self) -> int:
        return self._ready

    def batch(self, indices: Any) -> Batch:
        """The samples at these positions (int64 tensor)."""
        positions: Indices = indices.numpy()
        positions = np.where(positions < self._start, positions + self._start, positions)
        return blocks.gather(positions, self._blocks(int(positions.min()), int(positions.max()) + 1))

    def _blocks(self, begin: int, end: int) -> list[Block]:
        kept = [block for block in self._kept.values() if block.begin < end and block.end > begin]
        if sum(min(block.end, end) - max(block.begin, begin) for block in kept) == end - begin:
            return kept
        entries = rpc.get(self._shelf.call("holding", begin, end, DATA_S), 2 * DATA_S)
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


class FeedOrder(SampleOrder):
    """Samples in the order in which they come; where they end shows while they are read."""

    def __init__(self, batch: int, done: int, start: int, available: Callable[[int], int]) -> None:
        super().__init__(0, 1, batch, done=done, start=start)
        self._available = available

    def until(self, position: int) -> int:
        """``position``, or where the data ends; waits until it is known."""
        return self._available(position)

    def take(self, start: int, end: int) -> Indices:
        """The positions themselves."""
        return np.arange(start, end, dtype=np.int64)


class Feed:
    """An iterable as a :class:`~remote_agent.training.data.sources.Source`.

    Args:
        passes: gives an iterator over the data, each time it is called; the second time it may be at its end.
        batched: it yields batches; else samples, which are put together.
    """

    size: int | None = None

    def __init__(self, passes: Callable[[], Iterable[object]], batched: bool) -> None:
        self._passes, self._batched = passes, batched
        self._changed = threading.Condition()
        self._wanted = self._read = 0
        self._ended = self._closed = False
        self._failure: JobError | None = None
        self._open_blocks: dict[int, tuple[int, int]] = {}  # begin -> (end, samples that are not counted)
        self._shelf: Actor | None = None
        self._thread: threading.Thread | None = None

    def open(self, config: TrainingConfig, done: int, start: int) -> tuple[TrainingConfig, SampleOrder]:
        if config.epochs:
            cause = "epochs needs data whose length is known, and this can only be read from its beginning"
            raise JobError(cause, hint="set num_iterations in the place of epochs, or give data that can be indexed")
        extent.check_remaining(config, done, start, None)
        here = placement.here(placement.living_nodes())
        self._shelf = rpc.start(Shelf, placement.actor_options(here))
        self._start, self._batch = start, config.batch_size
        self._wanted = self._read = start
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()
        if self._available(start + config.batch_size) == start:
            raise JobError("the data gave no sample", hint="look at the data's own code")
        return config, FeedOrder(config.batch_size, done, start, self._available)

    def for_workers(self) -> Any:
        assert self._shelf is not None, "the source is open"
        return ShelvedData(self._shelf, self._start, self._available(self._start + self._batch) - self._start)

    def counted(self, slices: Sequence[SliceSpan]) -> None:
        finished = []
        with self._changed:
            for span in slices:
                for begin, (end, left) in list(self._open_blocks.items()):
                    overlap = min(end, span.end) - max(begin, span.begin)
                    if overlap > 0:
                        self._open_blocks[begin] = (end, left - overlap)
                        if left == overlap:
                            finished.append(begin)
                            del self._open_blocks[begin]
        if finished and self._shelf is not None:
            self._shelf.call("drop", finished)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        if self._shelf is not None:
            self._shelf.kill()

    # --- Reading -----------------------------------------------------------------------------------------------------

    def _available(self, position: int) -> int:
        """``position``, or where the data ends; waits for it.

        Raises:
            JobError: the data's code failed, or took too long.
        """
        with self._changed:
            self._wanted = max(self._wanted, position)
            self._changed.notify_all()
            known = self._changed.wait_for(
                lambda: self._read >= position or self._ended or self._failure is not None, DATA_S
            )
            if self._read >= position:
                return position
            if self._failure is not None:
                raise self._failure
            if not known:
                cause = f"the data gave no sample number {self._read + 1} within {DATA_S:.0f} s"
                raise JobError(cause, hint="look at the data's own code")
            return self._read

    def _run(self) -> None:
        try:
            position = 0
            for batch in self._batches():
                size = blocks.length(batch)
                begin, position = position, position + size
                if position <= self._start:
                    if self._closed:
                        return
                    continue  # used before the checkpoint
                if not self._put(Block(begin, position, batch)):
                    return
        except Exception as error:  # noqa: BLE001 - the user's code can raise anything
            failure = job.as_job_error("reading the data", error)
            with self._changed:
                self._failure = failure
                self._changed.notify_all()
        else:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, block: Block) -> bool:
        """Hand a block out; waits while enough is read ahead. False: the run has ended."""
        assert self._shelf is not None, "the source is open"
        with self._changed:
            ahead = AHEAD * self._batch
            self._changed.wait_for(lambda: self._closed or block.begin < self._wanted + ahead)
            if self._closed:
                return False
            self._open_blocks[block.begin] = (block.end, block.end - max(block.begin, self._start))
        ref = rpc.put(block.batch)
        self._shelf.call("put", block.begin, block.end, [ref.raw])
        with self._changed:
            self._read = block.end
            self._changed.notify_all()
        return True

    def _batches(self) -> Iterator[Batch]:
        """All batches, of one pass after the other."""
        while True:
            items, empty = iter(self._passes()), True
            parts: Iterator[object] = items if self._batched else self._collated(items)
            for part in parts:
                empty = False
                try:
                    batch = blocks.as_batch(part)
                except ValueError as error:
                    hint = BATCHES_HINT if self._batched else "yield samples that torch's default_collate can stack"
                    raise JobError(f"what the data yields is not a batch: {error}", hint=hint) from error
                yield batch
            if empty:
                return

    def _collated(self, items: Iterator[object]) -> Iterator[object]:
        while samples := list(itertools.islice(items, self._batch)):
            yield default_collate(samples)
