"""The frame of the app: the header, the views' names, the view that is shown, the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Input

from hetero_tui.ui.header import header_line, tabs_line
from hetero_tui.ui.keys import FLEET, IN_FILTER, IN_PALETTE, VIEWS, shown_keys
from hetero_tui.ui.sentences import keys_line
from hetero_tui.ui.view import Hinting, View
from hetero_tui.ui.views.fleet import FleetPane
from hetero_tui.ui.views.pane import Pane
from hetero_tui.ui.widgets.hosts import Hosts
from hetero_tui.ui.widgets.lines import Lines

TABS_FROM = 20
"""Lines of a terminal from which the views' names have a line of their own."""


class MainScreen(Screen[None]):
    """Draws a :class:`~hetero_tui.ui.view.View`; the panes hold what a user did to them, and nothing else.

    When it needs a frame of its own it calls ``redraw``, which draws all screens and survives a mistake in one.
    """

    def __init__(self, redraw: Callable[[], None]) -> None:
        super().__init__()
        self._redraw = redraw
        self._drawn = Size(0, 0)
        self._panes: dict[int, Pane] = {FLEET: FleetPane()}
        self.number = FLEET

    def compose(self) -> ComposeResult:
        yield Lines(id="status")
        yield Lines(id="tabs")
        yield self._panes[FLEET]
        yield Lines(id="keys")

    @property
    def pane(self) -> Pane:
        """The view that is shown."""
        return self._panes[self.number]

    @property
    def hosts(self) -> Hosts:
        """The panel of hosts."""
        return self._panes[FLEET].query_one(Hosts)

    async def show_pane(self, number: int) -> Pane:
        """Show another view; the answer is that view."""
        if number not in self._panes:
            # Loaded when it is shown for the first time: the first frame needs only the fleet's.
            name = VIEWS[number]
            made: Pane = getattr(import_module(f"hetero_tui.ui.views.{name.lower()}"), f"{name}Pane")()
            self._panes[number] = made
            made.display = False
            await self.mount(made, before="#keys")
        if number != self.number:
            self._panes[self.number].display = False
            self.number = number
        self.pane.display = True
        self.pane.focus_first()
        self._redraw()
        return self.pane

    def on_mount(self) -> None:
        self.hosts.rows.focus()
        # Before the first layout, with the terminal's size: laying out and painting once is what makes it quick.
        self._redraw()

    def on_resize(self) -> None:
        if self.app.size != self._drawn:
            self._redraw()

    def draw(self, view: View) -> None:
        """Draw everything that changed, for the terminal's size."""
        self._drawn = self.app.size
        width, height = self._drawn
        tabs = 1 if height >= TABS_FROM else 0
        palette = view.palette
        state = view.state
        self.query_one("#status", Lines).show([header_line(state, view.busy, view.now, view.zone, width, palette)])
        line = self.query_one("#tabs", Lines)
        if line.display != bool(tabs):
            line.display = bool(tabs)
        if tabs:
            line.show([tabs_line(state, self.number, width, palette)])
        self.pane.draw(view, width, max(1, height - 2 - tabs))
        self.query_one("#keys", Lines).show([keys_line(self._keys_now(view), width, palette)])

    def _keys_now(self, view: View) -> Sequence[tuple[str, str, str]]:
        """The keys that work now as (key, word, action): those of a dialog where one is open."""
        leave = ("ctrl+q", view.quit_key.word, view.quit_key.action)
        above = self.app.screen
        if isinstance(above, Hinting):
            return (*above.hints, leave)
        if above is not self:
            return (*IN_PALETTE, leave)
        if isinstance(self.focused, Input):
            return (*IN_FILTER, leave)
        return shown_keys(
            view.state,
            view.busy,
            view.quit_key,
            view.more_keys,
            view=self.number,
            keys=view.keys,
            run=self.pane.about(view),
        )

    def on_screen_suspend(self) -> None:
        self._redraw()

    def on_screen_resume(self) -> None:
        if self._drawn:
            self._redraw()

    def on_table_filtered(self) -> None:
        self._redraw()

    def on_rows_marked(self) -> None:
        self._redraw()

    async def on_rows_opened(self) -> None:
        """Two clicks are the key for opening, in the views where there is one."""
        await self.app.run_action("open")
