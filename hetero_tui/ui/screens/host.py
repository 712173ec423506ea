"""Shows all facts about one host."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from hetero_tui.ui.details import details_lines
from hetero_tui.ui.screens.dialog import Dialog
from hetero_tui.ui.view import View


class HostScreen(Dialog[None]):
    """Details of the host of that name; they go on being drawn while it is open."""

    hints = (("up down", "scroll", ""), ("esc", "close", ""))

    def __init__(self, view: Callable[[], View], host: str) -> None:
        super().__init__(view, title=host)
        self._host = host

    def text(self, view: View, width: int) -> list[Text]:
        """The host's details, or that it is no longer in the inventory."""
        host = view.state.host(self._host)
        if host is None:
            return [Text("It is no longer in the inventory.", style=view.palette.foreground)]
        return details_lines(host, view.state.run, view.now, width, view.palette)
