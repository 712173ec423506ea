"""Help: every key with a sentence, what the signs mean, and the words of the Plan view."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from hetero_tui.ui import look
from hetero_tui.ui.details import details_lines, wrapped
from hetero_tui.ui.draw.bars import PARTS
from hetero_tui.ui.keys import EVERYWHERE, VIEWS, Key
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.screens.dialog import Dialog
from hetero_tui.ui.view import View

_MOVE = Key(code="↑ ↓", action="", help="Choose a line; after tab, scroll the events")
_WAYS = f"The views: {', '.join(VIEWS.values())}; esc goes back, and closes a dialog, as q does"
_VIEWS = Key(code=f"1 - {max(VIEWS)}", action="", help=_WAYS)
_INDENT = 8
_WORDS = (
    ("planned", "what a step was to take by the run's first plan"),
    ("predicted", "the same, for the workers that take part now"),
    ("measured", "what the last steps took"),
    ("fixed", "what a step costs a device whatever its share, by the plan"),
    ("helps", "by how much a machine makes the run faster"),
)
"""Of the Plan view, with their meanings."""


class HelpScreen(Dialog[None]):
    """The help dialog."""

    hints = (("up down", "scroll", ""), ("esc", "close", ""))

    def __init__(self, view: Callable[[], View]) -> None:
        super().__init__(view, title="Help")

    def text(self, view: View, width: int) -> list[Text]:
        """Keys, then signs and words."""
        palette = view.palette
        lines = []
        for key in (_VIEWS, *view.keys, *view.more_keys, view.quit_key, _MOVE):
            where = "" if key.views == EVERYWHERE else f" ({', '.join(VIEWS[view] for view in sorted(key.views))})"
            first, *rest = wrapped(key.help + where, max(10, width - _INDENT - 2))
            lines.append(Text.assemble((f"{key.key:>6}  ", f"bold {palette.accent}"), (first, palette.foreground)))
            lines += [Text(" " * _INDENT + part, style=palette.foreground) for part in rest]
        return [*lines, Text(""), *_signs(width, palette), Text(""), *_words(width, palette)]


def _words(width: int, palette: Palette) -> list[Text]:
    """The words of the Plan view, each with its meaning."""
    label = max(len(word) for word, _ in _WORDS) + 2
    lines = []
    for word, meaning in _WORDS:
        for index, part in enumerate(wrapped(meaning, max(10, width - label - 2))):
            line = Text(f"  {'' if index else word:<{label}}", style=palette.accent)
            lines.append(line.append(part, style=palette.foreground))
    return lines


def _signs(width: int, palette: Palette) -> list[Text]:
    """The machines' states and a step's parts, in as many columns as there is room for."""
    signs = [(shown.glyph, state.value, shown.colour(palette)) for state, shown in look.HOST.items()]
    per_line = max(1, (width - 2) // 17)
    lines = []
    for start in range(0, len(signs), per_line):
        line = Text("  ")
        for glyph, word, colour in signs[start : start + per_line]:
            line.append(f"{glyph} ", style=colour).append(f"{word:<15}", style=palette.foreground)
        lines.append(line)
    line = Text("  ")
    for word, glyph, role in PARTS:
        line.append(f"{glyph} ", style=getattr(palette, role)).append(f"{word:<15}", style=palette.foreground)
    line.truncate(width)
    return [*lines, line]


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
