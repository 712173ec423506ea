"""Implements the base of all views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.containers import Vertical
from textual.widget import Widget

from hetero_tui.ui.arrangement import FRAME
from hetero_tui.ui.view import View
from hetero_tui.ui.widgets.lines import Lines
from hetero_tui.ui.widgets.table import Table

if TYPE_CHECKING:
    from hetero_tui.state import RunView
    from remote_agent.protocol import RunSummary

INSIDE = FRAME + 2
"""Cells of a line that a panel's borders, its left padding and its scroll bar (or right padding) take."""


TITLE = FRAME + 4
"""Cells of a panel's upper border that its title has not."""

NO_HOSTS = "No machines yet: press 1 to see how to name them."
"""What the other views say then."""


class Pane(Vertical):
    """One view. It holds nothing but what a user did to it: the cursor, the filter, the scale of a plot."""

    def __init__(self) -> None:
        super().__init__(classes="pane")
        self._titles: dict[str, tuple[str, str]] = {}

    def draw(self, view: View, width: int, height: int) -> None:
        """Draw what changed into ``width`` by ``height`` cells."""
        raise NotImplementedError

    @property
    def table(self) -> Table | None:
        """The table that the keys for filtering, sorting and opening are about; None: it has none."""
        return None

    def about(self, view: View) -> RunView | RunSummary | None:
        """The run that the keys are about."""
        return view.run

    @property
    def copied(self) -> str:
        """What the key for copying copies."""
        table = self.table
        return table.rows.marked_line if table is not None else "\n".join(part.text for part in self.query(Lines))

    def focus_first(self) -> None:
        """Give the focus to what the keys are about."""
        table = self.table
        if table is not None:
            table.rows.focus()
        else:
            self.screen.set_focus(None)

    def lines(self, name: str) -> Lines:
        """The panel of that name."""
        return self.query_one(f"#{name}", Lines)

    def titled(self, name: str, title: str, below: Text | None = None) -> None:
        """A panel's titles; set only when they change, since that draws the border again."""
        panel, titles = self.query_one(f"#{name}"), (title, below.plain if below else "")
        if self._titles.get(name) != titles:
            self._titles[name] = titles
            panel.border_title = Text(title)
            panel.border_subtitle = below

    def give_heights(self, heights: dict[str, int]) -> None:
        """Give panels their lines; one with none is not shown. Nothing is laid out again where all stays the same."""
        for name, height in heights.items():
            panel: Widget = self.query_one(f"#{name}")
            known = panel.styles.height
            if panel.display != (height > 0):
                panel.display = height > 0
            if height > 0 and (known is None or known.value != height):
                panel.styles.height = height
