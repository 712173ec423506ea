"""A widget that shows lines of text; the one place where text becomes cells of the screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hetero_tui.ui.sentences import log_lines
from hetero_tui.ui.view import View


class Lines(ScrollView, can_focus=False):
    """Lines of text, never wrapped; scrolls when there are more of them than fit. Text is shown as it is, no markup."""

    scrolls: ClassVar[bool] = False
    """Whether there may be more lines than fit; if not, another number of lines needs no new layout."""

    def __init__(self, *, id: str, classes: str = "") -> None:  # noqa: A002 (Textual's own name for it)
        super().__init__(id=id, classes=classes)
        self._lines: tuple[Text, ...] = ()
        self._keys: tuple[object, ...] = ()
        self._base: Style | None = None

    def show(self, lines: Iterable[Text]) -> None:
        """Show ``lines``; only those that differ from what is on the screen are drawn again."""
        lines_before, self._lines = self._lines, tuple(lines)
        before = self._keys
        same = zip_longest(self._lines, lines_before[: len(self._lines)], before[: len(self._lines)])
        self._keys = tuple(key if line is old else _identity(line) for line, old, key in same)
        if len(before) != len(self._keys):
            if self.scrolls:
                self.virtual_size = Size(0, len(self._keys))
            self.refresh()
            return
        for y, (old, new) in enumerate(zip(before, self._keys, strict=True)):
            if old != new:
                self.refresh_line(y)

    @property
    def text(self) -> str:
        """What is shown, for the clipboard."""
        return "\n".join(line.plain.rstrip() for line in self._lines)

    @property
    def lines(self) -> Sequence[Text]:
        """What is shown."""
        return self._lines

    def render_lines(self, crop: Region) -> list[Strip]:
        self._base = self.rich_style  # the same for all of them, and as costly as a line
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """The cells of the line ``y`` lines below the top of what is seen."""
        index = y + self.scroll_offset.y
        base = self._base or self.rich_style
        if index >= len(self._lines):
            return Strip.blank(self.size.width, base)
        return self.strip(index, base)

    def strip(self, index: int, base: Style) -> Strip:
        """The cells of one line, as wide as the widget."""
        line = self._lines[index]
        whole = base + self.app.console.get_style(line.style)
        return Strip(line.render(self.app.console)).apply_style(whole).adjust_cell_length(self.size.width, base)


def _identity(line: Text) -> object:
    """What makes two lines look the same: Text's own equality leaves the style of the whole out."""
    return line.plain, str(line.style), tuple(line.spans)


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
