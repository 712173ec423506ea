"""The hosts: titles, a line for each with a cursor, and a field to filter them by."""

from __future__ import annotations

from collections.abc import Iterable
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

from hetero_tui.state import HostView
from hetero_tui.ui import cells, columns
from hetero_tui.ui.view import View
from hetero_tui.ui.widgets.lines import Lines

_CURSOR = 2
"""Cells left of the first column, for the cursor's mark."""


class HostLines(Lines, can_focus=True):
    """The hosts with a cursor that stays on its host, wherever that moves to."""

    scrolls = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]

    class Marked(Message):
        """The cursor moved to another host."""

    class Opened(Message):
        """A host was clicked twice."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 (Textual's own name for it)
        super().__init__(id=id)
        self._names: tuple[str, ...] = ()
        self._cursor = 0
        self._highlight = Style()

    @property
    def marked(self) -> str | None:
        """The name of the host under the cursor."""
        return self._names[self._cursor] if self._names else None

    def show_hosts(self, names: Iterable[str], lines: Iterable[Text], highlight: Style) -> None:
        """Show one line a host; the cursor stays on its host, or near it where that is gone."""
        before = self.marked
        self._names = tuple(names)
        self._highlight = highlight
        if before in self._names:
            self._cursor = self._names.index(before)
        self._cursor = max(0, min(self._cursor, len(self._names) - 1))
        mark = Style(color=highlight.color, bold=True)
        self.show(
            Text.assemble(("› ", mark) if index == self._cursor else "  ", line) for index, line in enumerate(lines)
        )

    def strip(self, index: int, base: Style) -> Strip:
        """The cells of one host; the marked one stands out."""
        is_marked = index == self._cursor and index < len(self._names)
        return super().strip(index, base + Style(bgcolor=self._highlight.bgcolor) if is_marked else base)

    def _go(self, index: int) -> None:
        index = max(0, min(index, len(self._names) - 1))
        if index == self._cursor or not self._names:
            return
        before, self._cursor = self._cursor, index
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

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if index < len(self._names):
            self._go(index)
            if event.chain == 2:
                self.post_message(self.Opened())


class Hosts(Vertical):
    """The panel of hosts."""

    class Filtered(Message):
        """Another text is filtered by."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 (Textual's own name for it)
        super().__init__(id=id)
        self.filter = ""

    def compose(self) -> ComposeResult:
        yield Lines(id="titles")
        yield HostLines(id="rows")

    @property
    def rows(self) -> HostLines:
        """The lines with the cursor."""
        return self.query_one("#rows", HostLines)

    def draw(self, view: View, width: int) -> None:
        """Draw the hosts that match the filter into ``width`` cells between the borders."""
        state, palette = view.state, view.palette
        chosen = columns.choose(width - _CURSOR, tuple(host.name for host in state.hosts), run=state.run is not None)
        shown = [host for host in state.hosts if matches(host, self.filter, view.now)]
        header = cells.header_line(chosen, palette)
        self.query_one("#titles", Lines).show([Text(" " * _CURSOR).append_text(header)])
        lines = (cells.host_line(host, state.run, chosen, view.now, palette) for host in shown)
        highlight = Style(color=palette.accent, bgcolor=palette.raised)
        self.rows.show_hosts((host.name for host in shown), lines, highlight)
        self.border_title = Text(_title(state.hosts, len(shown), self.filter))

    def start_filter(self) -> None:
        """Ask for the text to filter by; it filters while it is typed."""
        existing = self.query("#filter")
        field = existing.first(Input) if existing else None
        if field is None:
            field = Input(value=self.filter, placeholder="name, state or device", id="filter", compact=True)
            self.mount(field)
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.filter = event.value
        self.post_message(self.Filtered())

    def on_input_submitted(self) -> None:
        self.end_filter(keep=True)

    def end_filter(self, *, keep: bool) -> None:
        """Take the field away; the filter stays, or all hosts are shown again."""
        self.query("#filter").remove()
        if not keep:
            self.filter = ""
        self.rows.focus()


def _title(hosts: tuple[HostView, ...], shown: int, wanted: str) -> str:
    if wanted:
        return f"Hosts matching “{wanted}”: {shown} of {len(hosts)} (escape shows all)"
    simulated = sum(host.facts is not None and host.facts.simulated_speed is not None for host in hosts)
    return f"Hosts, {simulated} simulated on this computer" if simulated else "Hosts"


def matches(host: HostView, wanted: str, now: float) -> bool:
    """Whether each word of ``wanted`` is somewhere in a host's name, address, state or devices."""
    text = " ".join((host.name, host.address, cells.state_words(host, now), *cells.device_words(host))).lower()
    return all(word in text for word in wanted.lower().split())
