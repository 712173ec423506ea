"""Queues the items that a shard still has to send to one worker."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from remote_agent.training.wire.frames import Header, Kind

MAX_STEPS_BEHIND = 2
"""Number of steps whose weights may wait for a worker; with more, it has to fetch the weights whole."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that is ready to send; all workers' outboxes share the payload, which never changes."""

    header: Header
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class WholeChunk:
    """A queue entry that sends the whole chunk in its state at that moment."""

    chunk: int


@dataclass(frozen=True, slots=True)
class AllFetched:
    """A queue entry after the last of the whole chunks."""


Item = Frame | WholeChunk | AllFetched


class Outbox:
    """A queue from a shard's threads to the sending thread."""

    def __init__(self, chunks: int) -> None:
        self._items: deque[Item] = deque()
        self._ready = threading.Condition()
        self._most_weights = MAX_STEPS_BEHIND * chunks
        self._weights = 0
        self._closed = False
        self.overflowed = False

    def put(self, item: Item) -> None:
        """Append an item, unless the outbox is closed. Too many weights close it and set ``overflowed``."""
        with self._ready:
            if self._closed:
                return
            self._weights += _is_weights(item)
            if self._weights > self._most_weights:
                self.overflowed = self._closed = True
                self._items.clear()
            else:
                self._items.append(item)
            self._ready.notify()

    def get(self) -> Item | None:
        """Wait for the next item; None: the outbox is closed, which happens at the end of the connection."""
        with self._ready:
            self._ready.wait_for(lambda: self._items or self._closed)
            if not self._items:
                return None
            item = self._items.popleft()
            self._weights -= _is_weights(item)
            return item

    def close(self) -> None:
        """Accept no more items; those in the queue are still returned."""
        with self._ready:
            self._closed = True
            self._ready.notify()


def _is_weights(item: Item) -> bool:
    return isinstance(item, Frame) and item.header.kind is Kind.WEIGHTS
