"""The question before the app is left while machines are being changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import Button

from hetero_tui.interrupted import half_way
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.screens.dialog import Dialog, button
from hetero_tui.ui.view import View


class LeaveScreen(Dialog[bool]):
    """Answers True when the app is to be left all the same."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "detach", show=False)]

    def __init__(self, view: Callable[[], View]) -> None:
        super().__init__(view, title="Leave now?")

    def text(self, view: View, width: int) -> list[Text]:
        """What would be cut off; that may end while this is asked."""
        left = half_way(view.busy)
        said = f"What is under way would be {left}." if left else "What was under way is done."
        return [Text(part, style=view.palette.foreground) for part in wrapped(said, width)]

    def buttons(self) -> Iterable[Button]:
        yield button("Stay", "leave")
        yield button("Leave", "detach", danger=True)

    def action_detach(self) -> None:
        """The same key again is the answer."""
        self.dismiss(True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "detach":
            self.dismiss(True)
