"""Implements the base of all dialogs: a framed box over the screen, lines of text, buttons, and escape to leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import ClassVar, Generic, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from hetero_tui.ui.view import View

_STYLES: list[str | PurePath] = [Path(__file__).parent.with_name("dialogs.tcss")]

Answer = TypeVar("Answer")

WIDTH = 76
"""Cells of a dialog with its border, where the terminal has as many."""

INSIDE = 7
"""Cells of that which border, padding and a scroll bar take."""

_AROUND = 6
"""Lines of a dialog beside its text: border, padding, a blank one, the buttons."""

LOW = 20
"""Lines of a terminal below which a dialog has no padding."""


class Dialog(ModalScreen[Answer | None], Generic[Answer]):
    """A dialog; its answer is None when it is left with escape. Subclasses say what it shows and offers.

    Textual calls the handlers (``on_...``) of a class and of its bases: a subclass handles only its own buttons.
    """

    CSS_PATH = _STYLES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("q", "close", show=False),
        Binding("tab", "next_field(1)", show=False, priority=True),
        Binding("shift+tab", "next_field(-1)", show=False, priority=True),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
    ]

    hints: ClassVar[tuple[tuple[str, str, str], ...]] = (
        ("enter", "choose", ""),
        ("tab", "next", ""),
        ("esc", "close", ""),
    )
    """Its keys for the line at the bottom, as (key, word, "")."""

    def __init__(self, view: Callable[[], View], *, title: str) -> None:
        super().__init__()
        self.view = view
        self._title = title
        self._has_fields = False
        self._early = 0  # fields that were to be passed over before there was any
        self._left: Input | None = None  # the field that had the focus when all were held

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            with VerticalScroll(id="body", can_focus=False):
                yield Static(id="text")
                yield from self.fields()
            with Horizontal(id="buttons"):
                yield from self.buttons()

    def fields(self) -> Iterable[Widget]:
        """Further widgets under the text."""
        return ()

    def buttons(self) -> Iterable[Button]:
        """The buttons, the one that changes nothing first: it has the focus."""
        yield button("Close", "leave")

    def text(self, view: View, width: int) -> list[Text]:
        """The lines to show in ``width`` cells."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.app.clear_notifications()  # on a small terminal they would lie over the buttons; errors are in the log too
        self.query_one("#dialog").border_title = Text(self._title)
        self._has_fields = True
        for _ in range(abs(self._early)):
            self.action_next_field(self._early)
        self.draw(self.view())

    def on_key(self, event: Key) -> None:
        """What was typed before there was a field is for the one that has the focus: nothing else lets it through."""
        if isinstance(self.focused, Input) and event.is_printable and event.character:
            self.focused.insert_text_at_cursor(event.character)
            event.stop()

    def action_next_field(self, by: int) -> None:
        if not self._has_fields:
            self._early += by
        elif by > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def hold(self, is_under_way: bool) -> None:
        """Let no field take a key while its order is under way: what is shown is what was ordered."""
        if is_under_way:
            self._left = self.focused if isinstance(self.focused, Input) else None
            self.set_focus(None)
            if self._left is not None:
                self._left.select_on_focus = False  # what was typed is corrected there, and not typed anew
        for field in self.query(Input):
            field.disabled = is_under_way
        if not is_under_way and self._left is not None and self.focused is None:
            self._left.focus()

    def on_resize(self) -> None:
        self.draw(self.view())

    @property
    def room(self) -> int:
        """Cells of a line of text in the dialog."""
        return max(10, min(WIDTH, self.app.size.width) - INSIDE)

    def draw(self, view: View) -> None:
        """Draw the text where it changed; on a low terminal the text scrolls, and the buttons stay."""
        height = self.app.size.height
        is_low = height < LOW
        self.set_class(is_low, "low")
        for body in self.query("#body"):
            room = max(1, height - _AROUND + (2 if is_low else 0))
            if body.styles.max_height is None or body.styles.max_height.value != room:
                body.styles.max_height = room
        self.show("#text", Text("\n").join(self.text(view, self.room)))

    def show(self, name: str, text: Text) -> None:
        """Show a text where it changed."""
        shown = self.query_one(name, Static)
        if shown.content != text:
            shown.update(text)

    def relabel(self, name: str, label: str) -> None:
        """Another label for a button."""
        shown = self.query_one(f"#{name}", Button)
        shown.label = Text(f"[ {label} ]")
        shown.refresh(layout=True)  # a new label alone keeps the old width

    def retitle(self, title: str) -> None:
        """Another title for the frame."""
        self.query_one("#dialog").border_title = Text(title)

    def action_scroll(self, by: int) -> None:
        self.query_one("#body").scroll_relative(y=by, animate=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A letter is for a field, where there is one or may be one in a moment."""
        if action == "close" and (not self._has_fields or self.query(Input)):
            return False
        return super().check_action(action, parameters)

    def action_close(self) -> None:
        self.action_leave()

    def action_leave(self) -> None:
        self.dismiss(None)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "leave":
            self.dismiss(None)


def button(label: str, name: str, *, danger: bool = False) -> Button:
    """A flat button; ``danger`` paints it red while it has the focus."""
    return Button(Text(f"[ {label} ]"), id=name, compact=True, classes="danger" if danger else "")


class Field(Input):
    """Takes keys in the order in which they come.

    Textual carries out what a key is bound to (enter, backspace, the arrows) after letters that come close behind it:
    over a slow connection a correction would land behind the text that is typed after it, and an arrow that chooses
    another text for the field would replace what is typed after it.
    """

    async def _on_key(self, event: Key) -> None:
        await super()._on_key(event)
        owners = [self] if event.is_printable else self.ancestors_with_self
        for owner in (each for each in owners if isinstance(each, Widget)):
            for binding in owner._bindings.key_to_bindings.get(event.key, ()):  # noqa: SLF001 - Textual has no other way
                if await self.app.run_action(binding.action, owner):
                    event.stop()
                    event.prevent_default()
                    return
