"""Runs work in a thread beside a run's loop, without losing the thread's unexpected error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

LOG = logging.getLogger(__name__)


class Background:
    """Work in a thread of its own, which does not keep the process alive.

    Args:
        on_error: called in the thread with an unexpected error of ``work``; None: :meth:`check` raises it.
    """

    def __init__(
        self, name: str, work: Callable[[], None], on_error: Callable[[Exception], None] | None = None
    ) -> None:
        self._work, self._on_error = work, on_error
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the thread's end, up to a limit; return at once if it was not started."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def check(self) -> None:
        """Raise the error of the work, if it failed, so that others do not wait for it."""
        if self._failed is not None:
            raise RuntimeError(f"{self._thread.name} ended: {self._failed!r}") from self._failed

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            LOG.exception("%s ended", self._thread.name)
            self._failed = error
            if self._on_error is not None:
                self._on_error(error)
