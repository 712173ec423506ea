"""What is still to be sent to one worker, in order."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from remote_agent.training.wire.frames import Header, Kind

MAX_STEPS_BEHIND = 2
"""A worker for which more steps' weights than this are waiting has to fetch them whole."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that is ready to be sent; the payload is shared by all workers' outboxes and never changes."""

    header: Header
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class WholeChunk:
    """A place in the queue where the chunk, as it is when its turn comes, is sent whole; ``asked``: by which FETCH."""

    chunk: int
    asked: int = 0


@dataclass(frozen=True, slots=True)
class AllFetched:
    """A place in the queue: the last of the whole chunks is before it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A place in the queue where the chunk, as it is when its turn comes, answers slice ``slice``.

    For a shard that answers each worker alone: what waits takes no memory, however many workers are slow to take it.
    """

    chunk: int
    slice: int


Item = Frame | WholeChunk | AllFetched | Answer


class Outbox:
    """A queue from a shard's threads to the one that sends.

    Args:
        chunks: how many chunks the shard holds.
    """

    def __init__(self, chunks: int) -> None:
        self._items: deque[Item] = deque()
        self._ready = threading.Condition()
        self._most_weights = MAX_STEPS_BEHIND * chunks
        self._weights = 0
        self._closed = False
        self.overflowed = False

    def put(self, item: Item) -> None:
        """Append; nothing happens once the outbox is closed. Too many weights close it, and set ``overflowed``."""
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
        """The next item, once there is one; None once the outbox is closed, which the end of the connection does."""
        with self._ready:
            self._ready.wait_for(lambda: self._items or self._closed)
            if not self._items:
                return None
            item = self._items.popleft()
            self._weights -= _is_weights(item)
            return item

    def close(self) -> None:
        """No more items; those that are in the queue are still given."""
        with self._ready:
            self._closed = True
            self._ready.notify()


def _is_weights(item: Item) -> bool:
    return isinstance(item, Frame) and item.header.kind is Kind.WEIGHTS
