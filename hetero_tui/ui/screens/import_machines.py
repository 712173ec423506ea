"""The machines of ``~/.ssh/config``: those that are wanted are looked at all at once, and written if they answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from rich.text import Text
from textual.widget import Widget
from textual.widgets import Button, Input

from hetero_tui.events import Level
from hetero_tui.ui import look
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.screens.dialog import Dialog, Field, button
from hetero_tui.ui.view import View

Say = Callable[[str, Level, str], None]
"""What became of one machine: its name in ``~/.ssh/config``, how that is, and words."""


class ImportScreen(Dialog[None]):
    """Hands the names to ``begin``, which says of each what became of it."""

    def __init__(
        self, view: Callable[[], View], known: Sequence[str], begin: Callable[[Sequence[str], Say], Awaitable[None]]
    ) -> None:
        super().__init__(view, title="From ~/.ssh/config")
        self._known, self._begin = tuple(known), begin
        self._said: dict[str, tuple[Level, str]] = {}

    def fields(self) -> Iterable[Widget]:
        yield Field(value=" ".join(self._known), id="names", compact=True)

    def buttons(self) -> Iterable[Button]:
        yield button("Cancel", "leave")
        yield button("Add those that answer", "write")

    def on_mount(self) -> None:
        self.query_one("#names").focus()

    def text(self, view: View, width: int) -> list[Text]:
        """What to do, or what became of each so far."""
        palette = view.palette
        if not self._said:
            said = "Each of these is looked at and added if it answers. Take out those that do not train."
            return [*(Text(part, style=palette.foreground) for part in wrapped(said, width)), Text("")]
        label = max(len(name) for name in self._said)
        lines = []
        for name, (level, words) in self._said.items():
            shown = look.LEVEL[level]
            for number, part in enumerate(wrapped(words, max(10, width - label - 4))):
                line = Text(f"{'' if number else name:<{label}}  ", style=palette.foreground)
                lines.append(line.append(f"{' ' if number else shown.glyph} {part}", style=shown.colour(palette)))
        return lines

    def on_input_submitted(self) -> None:
        self._send()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "write":
            self._send()

    def _send(self) -> None:
        names = tuple(dict.fromkeys(self.query_one("#names", Input).value.split()))
        if not names or self._said:
            return
        self._said = dict.fromkeys(names, (Level.INFO, "looking at it"))
        self.query_one("#names").display = self.query_one("#write").display = False
        self.query_one("#leave").focus()
        self.draw(self.view())
        self.run_worker(self._carried_out(names), exit_on_error=False)

    async def _carried_out(self, names: Sequence[str]) -> None:
        await self._begin(names, self._say)
        if self.is_attached:
            self.relabel("leave", "Close")

    def _say(self, name: str, level: Level, words: str) -> None:
        self._said[name] = (level, words)
        if self.is_attached:
            self.draw(self.view())
