"""The question before a machine is taken out of the inventory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.text import Text
from textual.widgets import Button

from hetero_tui.state import IN_CLUSTER
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.screens.dialog import Dialog, button
from hetero_tui.ui.view import View


class RemoveScreen(Dialog[bool]):
    """Answers True when the machine is to be taken out."""

    def __init__(self, view: Callable[[], View], host: str) -> None:
        super().__init__(view, title=f"Remove {host}?")
        self._host = host

    def text(self, view: View, width: int) -> list[Text]:
        """What is done, and what is not."""
        palette = view.palette
        said = [
            f"{self._host} is taken out of {view.inventory_path}; comments and all else there stay.",
            "Nothing is done on the machine: what is of ours there goes with the next teardown, now as before.",
        ]
        lines = [Text(part, style=palette.foreground) for words in said for part in wrapped(words, width)]
        host = view.state.host(self._host)
        if host is not None and host.state in IN_CLUSTER:
            warning = "It is in the cluster, and stays there until the teardown."
            lines += [Text(part, style=palette.warning) for part in wrapped(warning, width)]
        return lines

    def buttons(self) -> Iterable[Button]:
        yield button("Cancel", "leave")
        yield button("Remove", "remove", danger=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "remove":
            self.dismiss(True)
