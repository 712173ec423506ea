"""The coordinator that a worker takes tasks from, and its tasks: the successor of a killed one asks for both."""

from __future__ import annotations

import threading
from collections import deque

from remote_agent.training.shared.messages import StreamedAnswer, StreamedTask, WorkerStatus
from remote_agent.training.worker.streamed import Streaming

MAX_TASKS = 8
"""Of which a worker tells a new coordinator: it is two steps ahead at most, and may do others' slices too."""


class Assignments:
    """The streamed steps and repairs of one worker. Several threads call it: an account is given while a step is on.

    The process that gives the worker its first step is its coordinator, until another one asks for its status. What the
    earlier one has issued, and is not under way by then, is not done any more: so it is known who does what.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._coordinator: str | None = None
        self._under_way: StreamedTask | None = None
        self._done: deque[tuple[StreamedTask, StreamedAnswer]] = deque(maxlen=MAX_TASKS)
        self._repaired: deque[tuple[StreamedTask, StreamedAnswer]] = deque(maxlen=MAX_TASKS)

    def begin(self, task: StreamedTask) -> bool:
        """Whether ``task`` is to be done: it is not, where it comes from a coordinator that was replaced."""
        with self._lock:
            if self._coordinator is None:
                self._coordinator = task.coordinator
            if task.coordinator != self._coordinator:
                return False
            self._under_way = task
            return True

    def end(self, task: StreamedTask, answer: StreamedAnswer) -> None:
        """The step that was begun is done, with ``answer``."""
        with self._lock:
            self._done.append((task, answer))
            self._under_way = None

    def repaired(self, task: StreamedTask, answer: StreamedAnswer) -> None:
        """Another worker's slice was done, with ``answer``."""
        with self._lock:
            self._repaired.append((task, answer))

    def account(self, coordinator: str, steps: Streaming | None) -> WorkerStatus | None:
        """Take tasks from ``coordinator`` alone from now on; None: there are no streamed ``steps``."""
        with self._lock:
            self._coordinator = coordinator
            if steps is None:
                return None
            if steps.is_aside:  # it is to follow next, and what it does yet was given to others
                return WorkerStatus(step=steps.finished, following=True)
            return WorkerStatus(
                step=steps.finished,
                under_way=self._under_way,
                done=tuple(self._done),
                repaired=tuple(self._repaired),
                following=steps.following,
            )

    def outcome(self, step: int) -> StreamedAnswer:
        """What came of the worker's part in ``step``, which it has ended, and not long ago."""
        with self._lock:
            return next(answer for task, answer in reversed(self._done) if task.step == step)

    def forget(self) -> None:
        """The run goes back: what was done does not count any more."""
        with self._lock:
            self._done.clear()
            self._repaired.clear()
