"""Reads iterable data on the coordinator, in order, and gives it to the workers.

A thread reads a few batches ahead and puts blocks of samples into Ray's object store. A small actor beside the
coordinator (:mod:`~remote_agent.training.data.block_index`) tells the workers which block holds which samples. A block
is dropped once all of its samples are counted. So each sample is used once, also when a worker dies: another worker
fetches its slice again.

If no batch size is set and the strategy has common steps, the steps are the batches that the data yields, of any sizes
and shapes. Otherwise batches are joined and cut again.

At its end, the data is read again if this is possible (a ``DataLoader``, a generator *function*); an exhausted iterator
ends the run. A run that resumes from a checkpoint skips the samples that were used; the data has to yield the same ones
again.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from remote_agent.strategies import spec_of
from remote_agent.training import job
from remote_agent.training.config import TrainingConfig
from remote_agent.training.coordinator.plan import placement
from remote_agent.training.data import blocks, extent
from remote_agent.training.data.block_index import BlockIndex, BlockReader
from remote_agent.training.data.blocks import Batch, Block
from remote_agent.training.data.columns import collated
from remote_agent.training.data.extent import Begin
from remote_agent.training.data.order import SampleOrder
from remote_agent.training.data.samplers import DEFAULT_BATCH
from remote_agent.training.deadlines import CLOSE_S, DATA_S
from remote_agent.training.errors import JobError
from remote_agent.training.shared import rpc
from remote_agent.training.shared.rpc import Actor
from remote_agent.training.shared.slices import Indices, SliceSpan
from remote_agent.training.user_code import seeding

AHEAD = 4
"""Most batches that are read ahead of the training."""

BATCHES_HINT = (
    "yield batches (x, y) whose first dimension is the batch, or set batched = False on it if it yields samples"
)


class FeedOrder(SampleOrder):
    """Samples in the order in which they are read; the end of the data becomes known while reading.

    Args:
        begin: the position at which the run continues.
        available: from a position to that position, or to the end of the data.
        batch_end: the end of the batch that is a given number of batches after a position; None: use ``batch``.
    """

    def __init__(
        self,
        batch: int,
        begin: Begin,
        available: Callable[[int], int],
        batch_end: Callable[[int, int], int] | None = None,
    ) -> None:
        super().__init__(0, 1, batch, done=begin.done, start=begin.start)
        self._available, self._batch_end = available, batch_end

    def span(self, step: int) -> tuple[int, int]:
        """Positions (begin, end) of a step; empty if the data has ended."""
        if self._batch_end is None:
            return super().span(step)
        place = step - 1 - self.done
        begin = self._batch_end(self.start, place - 1) if place else self.start
        return begin, self._batch_end(self.start, place)

    def until(self, position: int) -> int:
        """``position``, or the end of the data; waits until it is known."""
        return self._available(position)

    def take(self, start: int, end: int) -> Indices:
        return np.arange(start, end, dtype=np.int64)

    def epoch_end(self, position: int) -> int:
        """The end of an epoch, which is unknown for iterable data."""
        return sys.maxsize


class Feed:
    """An iterable as a :class:`~remote_agent.training.coordinator.sources.Source`.

    Args:
        passes: returns an iterator over the data at each call; the second one may be exhausted.
        batched: the iterator yields batches; otherwise samples, which are put together.
    """

    size: int | None = None
    notes: tuple[str, ...] = ()
    ahead = 0

    def __init__(self, passes: Callable[[], Iterable[object]], batched: bool) -> None:
        self._passes, self._batched = passes, batched
        self._changed = threading.Condition()
        self._wanted = self._read = 0
        self._ends: list[int] = []  # of the blocks, from the first one that this run uses
        self._ended = self._closed = False
        self._failure: JobError | None = None
        self._open_blocks: dict[int, tuple[int, int]] = {}  # begin -> (end, samples that are not counted)
        self._index: Actor | None = None
        self._thread: threading.Thread | None = None

    def open(self, config: TrainingConfig, begin: Begin) -> tuple[TrainingConfig, SampleOrder]:
        if config.epochs:
            cause = "epochs needs data whose length is known, and this can only be read from its beginning"
            raise JobError(cause, hint="set num_iterations in the place of epochs, or give data that can be indexed")
        extent.check_remaining(config, begin.done, begin.start, None)
        own_batches = self._batched and not config.batch_size
        here = placement.here(placement.living_nodes())
        self._index = rpc.start(BlockIndex, placement.actor_options(here))
        self._start, self._seed = begin.start, config.seed
        self._batch = 1 if own_batches else config.batch_size or DEFAULT_BATCH
        self._wanted = self._read = begin.start
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()
        if self._available(begin.start + self._batch) == begin.start:
            raise JobError("the data gave no sample", hint="look at the data's own code")
        if own_batches:
            self._batch = self._batch_end(begin.start, 0) - begin.start
        whole = own_batches and not spec_of(config.strategy).rounds
        self.notes = ("each step is one batch, as the data yields it",) if whole else ()
        order = FeedOrder(self._batch, begin, self._available, self._batch_end if whole else None)
        return dataclasses.replace(config, batch_size=self._batch), order

    def for_workers(self) -> Any:
        assert self._index is not None, "the source is open"
        return BlockReader(self._index, self._start, self._available(self._start + self._batch) - self._start)

    def counted(self, slices: Sequence[SliceSpan]) -> None:
        finished = []
        with self._changed:
            for span in slices:
                for begin, (end, left) in list(self._open_blocks.items()):
                    overlap = min(end, span.end) - max(begin, span.begin)
                    if (
                        overlap > 0 and begin >= self._start + self._batch
                    ):  # else devices that come are measured with it
                        self._open_blocks[begin] = (end, left - overlap)
                        if left == overlap:
                            finished.append(begin)
                            del self._open_blocks[begin]
        if finished and self._index is not None:
            self._index.call("drop", finished)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        if self._index is not None:
            self._index.kill()

    # --- Reading -----------------------------------------------------------------------------------------------------

    def _available(self, position: int) -> int:
        """``position``, or the end of the data; waits for it. Raises JobError if the data fails, or takes too long."""
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

    def _batch_end(self, start: int, after: int) -> int:
        """The end of the batch that is a given number of batches after position ``start``, or the end of the data."""
        place = bisect.bisect_right(self._ends, start) + after
        while len(self._ends) <= place:
            before = self._read
            if self._available(before + 1) == before:
                return before
        return self._ends[place]

    def _run(self) -> None:
        position = 0
        seeding.seed_all(self._seed)  # what the data draws is the same each time, as far as that is up to us
        try:
            for batch in self._batches():
                size = blocks.length(batch)
                begin, position = position, position + size
                if position <= self._start:
                    if self._closed:
                        return
                    continue  # used before the checkpoint
                if not self._put(Block(begin, position, batch)):
                    return
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the user's code can raise anything
            failure = job.as_job_error(f"reading the data after {position:,} samples", error)
            with self._changed:
                self._failure = failure
                self._changed.notify_all()
        else:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, block: Block) -> bool:
        """Publish a block; wait while enough is read ahead. False: the run has ended."""
        assert self._index is not None, "the source is open"
        with self._changed:
            ahead = AHEAD * max(self._batch, block.end - block.begin if self._batched else 0)
            self._changed.wait_for(lambda: self._closed or block.begin < self._wanted + ahead)
            if self._closed:
                return False
            self._open_blocks[block.begin] = (block.end, block.end - max(block.begin, self._start))
        ref = rpc.put(block.batch)
        self._index.call("put", block.begin, block.end, [ref.raw])
        with self._changed:
            self._ends.append(block.end)
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
        count = 0
        while samples := list(itertools.islice(items, self._batch)):
            yield collated(samples, range(count, count + len(samples)))
            count += len(samples)
