"""Teardown: the question, what happens meanwhile, and the report of what was removed and what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from rich.text import Text
from textual.widgets import Button

from hetero_tui.events import Level
from hetero_tui.intents import TeardownPreview, TeardownReport, half_way
from hetero_tui.ui import format as fmt
from hetero_tui.ui import look
from hetero_tui.ui.cells import state_words
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.keys import QUIT_FOR_GOOD
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.screens.dialog import Dialog, button
from hetero_tui.ui.view import View

Paragraph = tuple[str, str, str]
"""A label, what it says, and the colour that it is said in."""


class TeardownScreen(Dialog[None]):
    """One dialog for all three phases. Leaving it while the teardown is under way does not end the teardown."""

    def __init__(
        self, view: Callable[[], View], preview: Callable[[], TeardownPreview], begin: Callable[[], None]
    ) -> None:
        """``preview`` says what there is to take down now; it is asked until the teardown begins."""
        self._look, self._preview = preview, preview()
        super().__init__(view, title=f"Tear down {self._preview.cluster}?")
        self._begin = begin
        self._began: float | None = None
        self._report: TeardownReport | None = None
        self._failure = ""

    def buttons(self) -> Iterable[Button]:
        yield button("Cancel", "leave")
        yield button("Tear down", "begin", danger=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "begin" and self._began is None:
            self._began = self.view().now
            event.button.display = False
            self.relabel("leave", "Hide")
            self.query_one("#leave").focus()
            self.retitle(f"Tearing down {self._preview.cluster}")
            self._begin()
            self.draw(self.view())

    def finish(self, report: TeardownReport | None, failure: str = "") -> None:
        """Show what came of it: a report, or why it did not get that far."""
        self._report, self._failure = report, failure
        clean = report is not None and not report.leftovers
        word = "is torn down" if clean else "is torn down, something is left" if report is not None else "still stands"
        self.retitle(f"{self._preview.cluster} {word}")
        self.relabel("leave", "Close")
        self.draw(self.view())

    def text(self, view: View, width: int) -> list[Text]:
        """The text of the phase that it is in."""
        palette = view.palette
        if self._failure:
            return [*_set([("Failed", self._failure, palette.bad)], width, palette)]
        if self._report is not None:
            return report_lines(self._report, width, palette, demo=view.quit_key is QUIT_FOR_GOOD)
        if self._began is not None:
            return progress_lines(view, self._began, palette)
        self._preview = self._look()
        return question_lines(self._preview, width, palette, view.busy, demo=view.quit_key is QUIT_FOR_GOOD)


def question_lines(
    preview: TeardownPreview, width: int, palette: Palette, busy: str = "", *, demo: bool = False
) -> list[Text]:
    """What a teardown would do; ``busy`` is the operation under way. Of the ``demo`` nothing outlives the app."""
    paragraphs: list[Paragraph] = []
    if half_way(busy):
        paragraphs.append(("Under way", f"{busy}, which ends first", palette.warning))
    if preview.running:
        paragraphs.append(("Running", preview.running, palette.warning))
    for index, stop in enumerate(preview.stops):
        paragraphs.append(("" if index else "Will stop", stop, palette.foreground))
    if not preview.stops:
        paragraphs.append(("Will stop", "nothing is known to run; every machine is looked at", palette.foreground))
    stays = "the runs' records and checkpoints, "
    stays += "until the demo ends" if demo else "measurements, and every Python environment"
    paragraphs.append(("Will stay", stays, palette.muted))
    if preview.unreachable:
        names = ", ".join(preview.unreachable)
        word = "is" if len(preview.unreachable) == 1 else "are"
        paragraphs.append(("Not now", f"{names} {word} unreachable and cleaned at the next contact", palette.warning))
    return [*_set(paragraphs, width, palette)]


def progress_lines(view: View, began: float, palette: Palette) -> list[Text]:
    """Every host's state while it goes on."""
    lines = [Text(f"For {fmt.spent(view.now - began)}. It goes on when this is hidden.", style=palette.muted)]
    label = max([0, *(len(host.name) for host in view.state.hosts)])
    for host in view.state.hosts:
        shown = look.HOST[host.state]
        line = Text(f"{host.name:<{label}}  ", style=palette.foreground)
        lines.append(line.append(f"{shown.glyph} {state_words(host, view.now)}", style=shown.colour(palette)))
    return [*lines]


def report_lines(report: TeardownReport, width: int, palette: Palette, *, demo: bool = False) -> list[Text]:
    """What was removed, a line a host, everything that is left, and what is kept; by a ``demo`` only for as long."""
    paragraphs: list[Paragraph] = []
    by_host: dict[str, Counter[str]] = {}
    for removed in report.removed:
        by_host.setdefault(removed.host, Counter())[removed.kind] += 1
    for index, (host, kinds) in enumerate(by_host.items()):
        counted = ", ".join(fmt.plural(count, kind) for kind, count in kinds.items())
        paragraphs.append(("" if index else "Removed", f"{host}: {counted}", palette.foreground))
    for index, left in enumerate(report.leftovers):
        said = f"{look.LEVEL[Level.BAD].glyph} {left.host}: {left.kind}, {left.detail}"
        paragraphs.append(("" if index else "Left", said, palette.bad))
    if not report.leftovers:
        seen = "every machine was looked at" if not report.unseen else "the other machines were looked at"
        none = "nothing runs" if report.kept else "nothing"
        paragraphs.append(("Left", f"{look.LEVEL[Level.GOOD].glyph} {none}; {seen}", palette.accent))
    kept = ("the runs' records and checkpoints, until the demo ends",) if demo and report.kept else report.kept_words
    for index, words in enumerate(kept):
        paragraphs.append(("" if index else "Kept", words.removeprefix("kept "), palette.muted))
    if report.unseen:
        said = f"{', '.join(report.unseen)}: no answer; nothing was started there from this computer"
        paragraphs.append(("Not seen", said, palette.warning))
    return [*_set(paragraphs, width, palette)]


def outcome(report: TeardownReport) -> str:
    """What came of it in a sentence."""
    left = len(report.leftovers)
    if left:
        return f"Torn down, but {'1 thing is' if left == 1 else f'{left} things are'} left: see hetero-tui down."
    unseen = f"; not looked at, as there was no answer: {', '.join(report.unseen)}" if report.unseen else ""
    kept = ", ".join(dict.fromkeys(item.kind for item in report.kept))
    return f"Torn down: {f'nothing runs; kept: {kept}' if kept else 'nothing is left'}{unseen}."


def _set(paragraphs: list[Paragraph], width: int, palette: Palette) -> list[Text]:
    """Paragraphs with their labels in a column of their own."""
    column = max([0, *(len(label) for label, _, _ in paragraphs)]) + 2
    lines = []
    for label, said, colour in paragraphs:
        for index, part in enumerate(wrapped(said, max(8, width - column))):
            line = Text(f"{'' if index else label:<{column}}", style=palette.muted)
            lines.append(line.append(part, style=colour))
    return lines
