"""Installing: the question, each machine's packages as they come, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from hetero_tui.events import HostState, Level
from hetero_tui.state import HostView
from hetero_tui.ui import format as fmt
from hetero_tui.ui import look
from hetero_tui.ui.cells import state_words
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.screens.dialog import Dialog, Field, button
from hetero_tui.ui.view import View

if TYPE_CHECKING:
    from hetero_tui.outcomes import BootstrapReport


@dataclass(frozen=True, kw_only=True)
class InstallOrder:
    """Requirements of jobs besides, and whether this computer collects the packages and sends them."""

    extras: tuple[str, ...]
    from_laptop: bool


class InstallScreen(Dialog[None]):
    """One dialog for all three phases. Leaving it while it goes on does not end the installation."""

    AUTO_FOCUS = "#install"  # not the field: on a low terminal that would scroll past the text

    def __init__(
        self,
        view: Callable[[], View],
        begin: Callable[[InstallOrder], None],
        mistakes_in: Callable[[tuple[str, ...]], tuple[str, ...]],
    ) -> None:
        super().__init__(view, title="Install what is missing")
        self._begin, self._mistakes_in = begin, mistakes_in
        self._mistakes: tuple[str, ...] = ()
        self._began: float | None = None
        self._report: BootstrapReport | None = None
        self._failure = ""

    def fields(self) -> Iterable[Widget]:
        yield Static("Packages that jobs need besides", classes="label")
        yield Field(placeholder="none; or such as datasets tokenizers==0.22", id="extras", compact=True)

    def buttons(self) -> Iterable[Button]:
        yield button("Cancel", "leave")
        yield button("Send all from here", "send")
        yield button("Install", "install")

    def text(self, view: View, width: int) -> list[Text]:
        """The text of the phase that it is in."""
        palette = view.palette
        if self._failure:
            return [Text(part, style=palette.bad) for part in wrapped(self._failure, width)]
        if self._report is not None:
            return report_lines(self._report, width, palette)
        if self._began is not None:
            return progress_lines(view, self._began, width)
        about = (
            "Each machine that lacks one gets an environment below ~/.hetero-tui: Python, Ray, and torch for its "
            "accelerator. Nothing else is touched there, and a second time nothing is done. Machines without internet "
            "can have everything sent from here."
        )
        lines = [Text(part, style=palette.foreground) for part in wrapped(about, width)]
        lines += [Text(""), *host_lines(view, width), Text("")]
        return [*lines, *(Text(part, style=palette.bad) for said in self._mistakes for part in wrapped(said, width))]

    def on_input_changed(self) -> None:
        self._mistakes = self._mistakes_in(self._extras)
        self.draw(self.view())

    @property
    def _extras(self) -> tuple[str, ...]:
        return tuple(self.query_one("#extras", Input).value.split())

    def on_input_submitted(self) -> None:
        self._send(from_laptop=False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id in ("send", "install"):
            self._send(from_laptop=event.button.id == "send")

    def _send(self, *, from_laptop: bool) -> None:
        if self._began is not None or self._mistakes:
            return
        self._began = self.view().now
        for name in ("extras", "send", "install"):
            self.query_one(f"#{name}").display = False
        self.query_one(".label").display = False
        self.relabel("leave", "Hide")
        self.query_one("#leave").focus()
        self.retitle("Installing")
        self._begin(InstallOrder(extras=self._extras, from_laptop=from_laptop))
        self.draw(self.view())

    def finish(self, report: BootstrapReport | None, failure: str = "") -> None:
        """Show what came of it: a report, or why it did not get that far."""
        self._report, self._failure = report, failure
        self.retitle("Nothing was installed" if report is None else outcome(report))
        self.relabel("leave", "Close")
        self.draw(self.view())


def outcome(report: BootstrapReport) -> str:
    """A title for what came of it."""
    if report.failed:
        return f"{fmt.plural(len(report.failed), 'machine')} not ready"
    changed = sum(entry.changed for entry in report.installed)
    return f"Installed on {fmt.plural(changed, 'machine')}" if changed else "There was nothing to do"


def progress_lines(view: View, began: float, width: int) -> list[Text]:
    """Every machine and how far its packages are."""
    said = f"For {fmt.spent(view.now - began)}. It goes on when this is hidden."
    return [Text(said, style=view.palette.muted), *host_lines(view, width)]


def host_lines(view: View, width: int) -> list[Text]:
    """Each machine with its state, and what is under way or missing there."""
    palette = view.palette
    label = max([0, *(len(host.name) for host in view.state.hosts)])
    lines = []
    for host in view.state.hosts:
        shown = look.HOST[host.state]
        line = Text(f"{host.name:<{label}}  ", style=palette.foreground)
        line.append(f"{shown.glyph} {_words(host, view.now)}", style=shown.colour(palette))
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _words(host: HostView, now: float) -> str:
    told = host.detail and host.state in (HostState.INSTALLING, HostState.UNFIT, HostState.FAILED)
    return host.detail if told else state_words(host, now)


def report_lines(report: BootstrapReport, width: int, palette: Palette) -> list[Text]:
    """A paragraph for each machine."""
    good, bad = look.LEVEL[Level.GOOD], look.LEVEL[Level.BAD]
    said = [(good, entry.host, entry.detail) for entry in report.installed]
    for name, error in report.failed.items():
        said.append((bad, name, f"{error.cause}. {error.hint}" if error.hint else error.cause))
    lines = []
    for shown, name, words in said:
        first, *rest = wrapped(f"{name}: {words}", max(10, width - 2))
        lines.append(Text(f"{shown.glyph} {first}", style=shown.colour(palette)))
        lines += [Text(f"  {part}", style=shown.colour(palette)) for part in rest]
    return lines
