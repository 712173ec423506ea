"""Records a worker's coordinator and its tasks, for which the new coordinator asks after a takeover."""

from __future__ import annotations

import threading
from collections import deque

from remote_agent.training.shared.messages import StreamedAnswer, StreamedTask, WorkerStatus
from remote_agent.training.worker.streamed import Streaming

MAX_TASKS = 8
"""Number of tasks that a worker reports to a new coordinator: those of two steps, and slices of lost workers."""


class Assignments:
    """The streamed steps and repairs of one worker. Several threads use it: a status is asked for during a step.

    The process that gives the worker its first step is its coordinator, until another one asks for the status. Tasks of
    the earlier coordinator that have not started by then are dropped, so that the new one knows what every worker does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._coordinator: str | None = None
        self._under_way: StreamedTask | None = None
        self._done: deque[tuple[StreamedTask, StreamedAnswer]] = deque(maxlen=MAX_TASKS)
        self._repaired: deque[tuple[StreamedTask, StreamedAnswer]] = deque(maxlen=MAX_TASKS)

    def begin(self, task: StreamedTask) -> bool:
        """Start ``task``; False: it comes from a coordinator that was replaced, and is dropped."""
        with self._lock:
            if self._coordinator is None:
                self._coordinator = task.coordinator
            if task.coordinator != self._coordinator:
                return False
            self._under_way = task
            return True

    def end(self, task: StreamedTask, answer: StreamedAnswer) -> None:
        """Record that the started step is done, with ``answer``."""
        with self._lock:
            self._done.append((task, answer))
            self._under_way = None

    def repaired(self, task: StreamedTask, answer: StreamedAnswer) -> None:
        """Record that another worker's slice is done, with ``answer``."""
        with self._lock:
            self._repaired.append((task, answer))

    def account(self, coordinator: str, steps: Streaming | None) -> WorkerStatus | None:
        """Accept tasks only from ``coordinator`` from now on; None: there are no streamed ``steps``."""
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
        """The result of the worker's part in ``step``, which ended not long ago."""
        with self._lock:
            return next(answer for task, answer in reversed(self._done) if task.step == step)

    def forget(self) -> None:
        """Forget all results, since the run returns to an earlier step."""
        with self._lock:
            self._done.clear()
            self._repaired.clear()
