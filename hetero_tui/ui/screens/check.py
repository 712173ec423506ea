"""Shows the findings of a check, each with the reason why it matters and the command that solves it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import Button

from hetero_tui.events import Level
from hetero_tui.ui import format as fmt
from hetero_tui.ui import look
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.screens.dialog import Dialog, button
from hetero_tui.ui.screens.install import host_lines
from hetero_tui.ui.view import View

if TYPE_CHECKING:
    from hetero_tui.outcomes import CheckReport


class CheckScreen(Dialog[None]):
    """Looks as soon as it is open (``begin(False)``); ``begin(True)`` mends what is ours, and looks again."""

    hints = (("enter", "choose", ""), ("tab", "next", ""), ("y", "copy", ""), ("esc", "hide", ""))

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "copy", show=False)]

    def __init__(self, view: Callable[[], View], begin: Callable[[bool], None]) -> None:
        super().__init__(view, title="Checking")
        self._begin = begin
        self._began = view().now
        self._mends = False
        self._report: CheckReport | None = None
        self._failure = ""

    def buttons(self) -> Iterable[Button]:
        yield button("Hide", "leave")
        yield button("Copy", "copy")
        yield button("Make environments anew", "mend")

    def on_mount(self) -> None:
        self._offer()
        self.query_one("#leave").focus()
        self._begin(False)

    def _offer(self) -> None:
        self.query_one("#copy").display = self._report is not None and bool(self._report.findings)
        is_broken = self._report is not None and bool(self._report.broken)
        self.query_one("#mend").display = is_broken and not self.view().readonly

    def text(self, view: View, width: int) -> list[Text]:
        """What is under way, or what was found."""
        palette = view.palette
        if self._failure:
            return [Text(part, style=palette.bad) for part in wrapped(self._failure, width)]
        if self._report is not None:
            return report_lines(self._report, width, palette)
        what = "Environments of ours that do not work are made anew" if self._mends else "Nothing is changed"
        said = f"{what}. For {fmt.spent(view.now - self._began)}; it goes on when this is hidden."
        return [*(Text(part, style=palette.muted) for part in wrapped(said, width)), *host_lines(view, width)]

    def finish(self, report: CheckReport | None, failure: str = "") -> None:
        """Show what was found, or why it did not get that far."""
        self._report, self._failure = report, failure
        self.retitle("Not checked" if report is None else outcome(report))
        self.relabel("leave", "Close")
        self._offer()
        self.draw(self.view())

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "copy":
            self.action_copy()
        elif event.button.id == "mend":
            self._report, self._mends, self._began = None, True, self.view().now
            self.retitle("Mending")
            self.relabel("leave", "Hide")
            self._offer()
            self.query_one("#leave").focus()
            self._begin(True)
            self.draw(self.view())

    def action_copy(self) -> None:
        if self._report is not None and self._report.findings:
            lines = report_lines(self._report, 1000, self.view().palette)
            self.app.copy_to_clipboard("\n".join(line.plain for line in lines))
            self.notify("Copied all findings.", markup=False)


def outcome(report: CheckReport) -> str:
    """A title for what was found."""
    if not report.findings:
        return "Nothing stands in the way"
    bad = f"; {fmt.plural(len(report.bad), 'machine')} can't take part" if report.bad else ""
    return f"{fmt.plural(len(report.findings), 'finding')}{bad}"


def report_lines(report: CheckReport, width: int, palette: Palette) -> list[Text]:
    """The findings, then the machines that are fit, then what to say of their network."""
    lines: list[Text] = []
    for finding in report.findings:
        shown = look.LEVEL[Level.BAD if finding.level == "bad" else Level.WARNING]
        head, *rest = wrapped(f"{finding.host or 'cluster'}: {finding.what}", max(10, width - 2))
        lines.append(Text(f"{shown.glyph} {head}", style=shown.colour(palette)))
        lines += [Text(f"  {part}", style=shown.colour(palette)) for part in rest]
        lines += [Text(f"  {part}", style=palette.muted) for part in wrapped(f"why: {finding.why}", width - 2)]
        lines += [Text(f"  {part}", style=palette.foreground) for part in wrapped(f"do: {finding.mend}", width - 2)]
    fit = [host for host in report.hosts if host.name not in report.bad]
    label = max([0, *(len(host.name) for host in fit)])
    good = look.LEVEL[Level.GOOD]
    for host in fit:
        link = fmt.milliseconds(host.round_trip)
        words = [host.address, ", ".join(host.devices), f"{link} from here" if host.round_trip is not None else ""]
        if host.sends is not None:
            words.append(f"sends {fmt.link_rate(host.sends)}, receives {fmt.link_rate(host.receives)}")
        line = Text(f"{good.glyph} {host.name:<{label}}  ", style=good.colour(palette))
        line.append(", ".join(word for word in words if word), style=palette.foreground)
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    if report.network:
        lines += [Text(part, style=palette.muted) for part in wrapped(report.network, width)]
    return lines
