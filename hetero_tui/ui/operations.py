"""Runs an operation of the session in the background, and shows and logs its errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from textual.app import App

from hetero_tui.errors import HeteroTuiError
from hetero_tui.events import Level
from hetero_tui.state import LogLine

_TOAST_SECONDS = 10
"""How long an error stays; it is in the log as well."""

_NOTES = 100
"""Notes that are kept."""

_NEWEST = 5
"""Lines of the session's log among which an error is looked for that it has told already."""

_logger = logging.getLogger(__name__)


class Operations:
    """The operations that the keys began, and the notes that came of them."""

    def __init__(
        self,
        app: App[Any],
        *,
        now: Callable[[], float],
        redraw: Callable[[], None],
        log: Callable[[], tuple[LogLine, ...]],
    ) -> None:
        self._app = app
        self._now = now
        self._redraw = redraw
        self._log = log
        self._last_bug = ""
        self.failure = ""
        self.notes: tuple[LogLine, ...] = ()

    def begin(self, what: str, operation: Callable[[], Awaitable[object]]) -> None:
        """Carry out an operation in the background."""
        self._app.run_worker(self.carry_out(what, operation), exit_on_error=False)

    async def carry_out(self, what: str, operation: Callable[[], Awaitable[object]]) -> bool:
        """Await an operation; what goes wrong becomes a toast and a line in the log, and False."""
        try:
            await operation()
        except HeteroTuiError as error:
            self.failure = str(error)
            if not any(_same(line.text, _one_line(self.failure)) for line in self._log()[-_NEWEST:]):
                self.note(self.failure)
            self._toast(self.failure, f"{what} failed")
            return False
        except Exception as mistake:  # noqa: BLE001 (a mistake of ours must not take the screen of a live run with it)
            self.report_bug(what, mistake)
            return False
        finally:
            self._redraw()
        return True

    def report_bug(self, what: str, mistake: Exception) -> None:
        """Show a mistake of ours, and log it with its traceback; once, if it comes again with every frame."""
        said = f"a bug in hetero-tui while {what}: {type(mistake).__name__}: {mistake}"
        if said == self._last_bug:
            return
        self._last_bug = said
        _logger.error("a bug in hetero-tui while %s", what, exc_info=mistake)
        self.note(said)
        self._toast(said, "This should not happen")

    def note(self, text: str, level: Level = Level.BAD) -> None:
        """A line of the screens' own in the log."""
        line = LogLine(time=self._now(), level=level, text=_one_line(text))
        self.notes = (*self.notes[-(_NOTES - 1) :], line)

    def _toast(self, said: str, title: str) -> None:
        self._app.notify(said, title=title, severity="error", timeout=_TOAST_SECONDS, markup=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _same(logged: str, said: str) -> bool:
    """Whether a line of the log is that error: the log's lines are cut."""
    return logged == said or (logged.endswith("…") and said.startswith(logged[:-1]))
