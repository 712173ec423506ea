"""A panel with titles, a line for each entry with a cursor, a foot, and a field to filter the entries by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Input

from hetero_tui.ui.palette import Palette
from hetero_tui.ui.screens.dialog import Field
from hetero_tui.ui.widgets.lines import Lines

CURSOR = 2
"""Cells left of the first column, for the cursor's mark."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a table: ``key`` names it, ``words`` are what the filter looks at (the line's own if empty)."""

    key: str
    line: Text
    words: str = ""

    def matches(self, wanted: str) -> bool:
        """Whether each word of ``wanted`` is somewhere in it."""
        text = (self.words or self.line.plain).lower()
        return all(word in text for word in wanted.lower().split())


class Rows(Lines, can_focus=True):
    """Entries with a cursor that stays on its entry, wherever that moves to."""

    scrolls = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("escape", "app.show_all", show=False),
    ]

    class Marked(Message):
        """The cursor moved to another entry."""

    class Opened(Message):
        """An entry was clicked twice."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 (Textual's own name for it)
        super().__init__(id=id)
        self._names: tuple[str, ...] = ()
        self._cursor = 0
        self._was_moved = False
        self._highlight = Style()
        self._kept: dict[str, tuple[Entry, Style | None, Text]] = {}  # lines whose entries are the same stay

    @property
    def marked(self) -> str | None:
        """The key of the entry under the cursor."""
        return self._names[self._cursor] if self._names else None

    @property
    def marked_line(self) -> str:
        """What is shown of the entry under the cursor."""
        return self.lines[self._cursor].plain[CURSOR:].rstrip() if self._names else ""

    @property
    def in_sight(self) -> range:
        """The places of the entries that are seen; those that come into sight are drawn again at once."""
        top = self.scroll_offset.y
        return range(top, top + max(1, self.size.height))

    def show_entries(self, entries: Sequence[Entry], highlight: Style, *, newest_first: bool = False) -> None:
        """Show one line an entry; the cursor stays on its entry, or near it where that is gone.

        ``newest_first``: until a user moves it, it stays on the first one, so that what is new is in sight.
        """
        before = None if newest_first and not self._was_moved else self.marked
        self._names = tuple(entry.key for entry in entries)
        self._highlight = highlight
        if before in self._names:
            self._cursor = self._names.index(before)
        self._cursor = max(0, min(self._cursor, len(self._names) - 1))
        mark = Style(color=highlight.color, bold=True)
        kept, self._kept, lines = self._kept, {}, []
        for index, entry in enumerate(entries):
            style = mark if index == self._cursor else None
            of, marked, line = kept.get(entry.key, (None, None, Text()))
            if of is not entry or marked != style:
                line = Text.assemble(("› ", style) if style else "  ", entry.line)
            self._kept[entry.key] = entry, style, line
            lines.append(line)
        self.show(lines)

    def mark(self, name: str) -> None:
        """Put the cursor on the entry of that key, if there is one."""
        if name in self._names:
            self._go(self._names.index(name))

    def strip(self, index: int, base: Style) -> Strip:
        """The cells of one entry; the marked one stands out."""
        is_marked = index == self._cursor and index < len(self._names)
        return super().strip(index, base + Style(bgcolor=self._highlight.bgcolor) if is_marked else base)

    def _go(self, index: int) -> None:
        index = max(0, min(index, len(self._names) - 1))
        if index == self._cursor or not self._names:
            return
        before, self._cursor = self._cursor, index
        self._was_moved = True
        self._keep_in_sight()
        self.refresh_line(before)
        self.refresh_line(index)
        self.post_message(self.Marked())

    def _keep_in_sight(self) -> None:
        height, top = self.size.height, self.scroll_offset.y
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False, immediate=True)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False, immediate=True)

    def action_move(self, by: int) -> None:
        self._go(self._cursor + by)

    def action_page(self, by: int) -> None:
        self._go(self._cursor + by * max(1, self.size.height - 1))

    def on_resize(self) -> None:
        self._keep_in_sight()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Others are in sight: they are drawn as they are now."""
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Marked())

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if index < len(self._names):
            self._go(index)
            if event.chain == 2:
                self.post_message(self.Opened())


class Table(Vertical):
    """The panel. Subclasses say what stands in it (:meth:`fill`) and by what it can be sorted."""

    orders: ClassVar[tuple[str, ...]] = ()
    """What it can be sorted by; the first is the order in which the entries come."""

    newest_first: ClassVar[bool] = False
    """Whether new entries come at the top, in the order in which the entries come."""

    class Filtered(Message):
        """Another text is filtered by."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 (Textual's own name for it)
        super().__init__(id=id, classes="table panel")
        self.filter = ""
        self.order = 0
        self._title = ""

    def compose(self) -> ComposeResult:
        yield Lines(id="titles")
        yield Rows(id="rows")
        yield Lines(id="foot")

    @property
    def rows(self) -> Rows:
        """The lines with the cursor."""
        return self.query_one("#rows", Rows)

    @property
    def sorted_by(self) -> str:
        """What it is sorted by; empty: as the entries come."""
        return self.orders[self.order] if self.order else ""

    def fill(
        self, title: str, titles: Text, entries: Sequence[Entry], palette: Palette, foot: Iterable[Text] = ()
    ) -> None:
        """Show those of ``entries`` that match the filter, between ``titles`` and ``foot``."""
        shown = [entry for entry in entries if entry.matches(self.filter)] if self.filter else entries
        self.query_one("#titles", Lines).show([Text(" " * CURSOR).append_text(titles)])
        highlight = Style(color=palette.accent, bgcolor=palette.raised)
        self.rows.show_entries(shown, highlight, newest_first=self.newest_first and not self.order)
        below = [*foot]
        panel = self.query_one("#foot", Lines)
        panel.show(below)
        if panel.display != bool(below) or panel.styles.height is None or len(below) != panel.styles.height.value:
            panel.display = bool(below)
            panel.styles.height = len(below)
        if self.filter:
            title = f"{title} matching “{self.filter}”: {len(shown)} of {len(entries)} (escape shows all)"
        elif self.sorted_by:
            title = f"{title}, by {self.sorted_by}"
        if self._title != title:  # setting it draws the border again
            self._title = title
            self.border_title = Text(title)

    def sort_next(self) -> None:
        """Sort by the next of :attr:`orders`."""
        self.order = (self.order + 1) % max(1, len(self.orders))

    def start_filter(self) -> None:
        """Ask for the text to filter by, in the line of the titles; it filters while it is typed."""
        existing = self.query("#filter")
        field = existing.first(Input) if existing else None
        if field is None:
            field = Field(value=self.filter, placeholder="words to look for", id="filter", compact=True)
            self.query_one("#titles").display = False
            self.mount(field, before=0)
        self.screen.set_focus(field)  # now: the next key is for it

    def on_input_changed(self, event: Input.Changed) -> None:
        self.filter = event.value
        self.post_message(self.Filtered())

    def on_input_submitted(self) -> None:
        self.end_filter(keep=True)

    def end_filter(self, *, keep: bool) -> None:
        """Take the field away; the filter stays, or all entries are shown again."""
        self.query("#filter").remove()
        self.query_one("#titles").display = True
        if not keep:
            self.filter = ""
        self.rows.focus()
        self.post_message(self.Filtered())
