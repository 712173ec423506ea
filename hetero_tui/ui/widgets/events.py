"""The event log, newest first; what one has scrolled to stays where it is while new lines arrive above."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from hetero_tui.ui.sentences import log_lines
from hetero_tui.ui.view import View
from hetero_tui.ui.widgets.lines import Lines

_SHOWN = 200
"""Log entries that can be scrolled to here."""


class EventLog(Lines, can_focus=True):
    """The log's lines, wrapped to the panel."""

    scrolls = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.show_all", show=False)]

    def draw(self, view: View, width: int) -> None:
        """Draw the newest entries into ``width`` cells."""
        before, top = len(self.lines), self.scroll_offset.y
        self.show(line for entry in view.log[:_SHOWN] for line in log_lines(entry, view.zone, width, view.palette))
        added = len(self.lines) - before
        if top > 0 and added > 0:
            self.scroll_to(y=top + added, animate=False, immediate=True)
