"""What a user sees of an app, and does to it."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from textual.events import Key
from textual.widgets import Static

from hetero_tui.state import State
from hetero_tui.ui.app import HeteroApp
from hetero_tui.ui.header import header_line
from hetero_tui.ui.palette import DARK
from hetero_tui.ui.view import View
from hetero_tui.ui.widgets.lines import Lines
from tests.ui import scenarios


def seen(app: HeteroApp) -> str:
    """All characters of the screen as they are painted."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


def pane_text(app: HeteroApp) -> str:
    """The view that is shown, panel by panel."""
    return "\n".join(part.text for part in app.main.pane.query(Lines) if part.display)


def text_of(app: HeteroApp, name: str) -> str:
    """One widget of the main screen."""
    return app.main.query_one(f"#{name}", Lines).text


def rows_of(app: HeteroApp) -> list[str]:
    """The lines of the view's table."""
    return [line.plain for line in app.main.pane.table.rows.lines]


def title_of(app: HeteroApp, name: str) -> str:
    """The title of one panel of the view."""
    return str(app.main.pane.query_one(f"#{name}").border_title)


def dialog_text(app: HeteroApp, name: str = "text") -> str:
    """A text of the dialog that is open, its lines joined as one reads them."""
    return " ".join(str(app.screen.query_one(f"#{name}", Static).content).split())


def toasts(app: HeteroApp) -> list[str]:
    return [notification.message for notification in app._notifications]


def show(app: HeteroApp, state: State) -> None:
    """Have the session be in another state."""
    app.intents.change(state)
    app.redraw()


async def settle(app: HeteroApp, pilot: Any, *keys: str) -> None:
    """Press keys, and wait until all that they began is done and drawn."""
    if keys:
        await pilot.press(*keys)
    await app.workers.wait_for_complete()
    painted = None
    while painted != (painted := seen(app)):
        app.redraw()
        await pilot.pause()


async def resize(app: HeteroApp, pilot: Any, width: int, height: int) -> None:
    """Give the terminal another size, and wait until all is drawn for it."""
    await pilot.resize_terminal(width, height)
    while app.screen.size != (width, height):
        await pilot.pause()
    await settle(app, pilot)


def type_ahead(app: HeteroApp, *keys: str) -> None:
    """Keys that are there before the first of them was looked at, as on a busy computer."""
    characters = {"tab": "\t", "colon": ":", "slash": "/"}
    for key in keys:
        app.post_message(Key(key, characters.get(key, key if len(key) == 1 else None)))


def view_of(state: State, busy: str = "", later: float = 0.0, **options: Any) -> View:
    """What screens are drawn from, ``later`` seconds after the scenarios' clock."""
    now = scenarios.NOW + later
    return View(state=state, busy=busy, now=now, zone=UTC, palette=DARK, inventory_path="i.yaml", **options)


def header(state: State, width: int = 200, busy: str = "", later: float = 0.0) -> str:
    """The status line."""
    return header_line(state, busy, scenarios.NOW + later, UTC, width, DARK).plain
