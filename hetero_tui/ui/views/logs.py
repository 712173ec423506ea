"""Shows the logs and prints of a run's processes (coordinator, workers, Ray, supervisor), of all hosts or of one."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from datetime import tzinfo
from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from hetero_tui.intents import LoggedLine
from hetero_tui.text import one_line
from hetero_tui.ui import format as fmt
from hetero_tui.ui.arrangement import FRAME
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.screens.dialog import Field
from hetero_tui.ui.view import View
from hetero_tui.ui.views.pane import INSIDE, NO_HOSTS, Pane
from hetero_tui.ui.widgets.lines import Lines
from hetero_tui.ui.widgets.table import Table

KEPT = 5000
"""Lines that are kept."""

_LONGEST = 1000
"""Characters of a line that are shown; the file that the key for saving writes has as many."""

_OURS = re.compile(r"^(?:INFO |(?P<level>[A-Z]+ ))remote_agent[.\w]*: ")
_LEVEL = re.compile(r"(?<!\S)(ERROR|CRITICAL|WARNING)(?=[\s:])")

ALL = "all"
_RAYS = ("raylet", "gcs_server")


def source_of(process: str) -> str:
    """The kind of a process: ``coordinator``, ``workers``, ``ray``, ``supervisor``."""
    name = process.partition(".")[0]
    if name in ("coordinator", "supervisor"):
        return name
    return "ray" if name in _RAYS else "workers"


SOURCES = (ALL, "coordinator", "workers", "ray", "supervisor")

READING, ENDED, FAILED = "", "ended", "broken off"
"""How the reading stands, in the words of the title."""


class LogPanel(Lines, can_focus=True):
    """Lines that stay where they are while new ones come below, unless they are followed."""

    scrolls = True


class LogsPane(Pane):
    """View 6."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: deque[LoggedLine] = deque(maxlen=KEPT)
        self.host = ""
        self.run = ""
        self.source = ALL
        self.filter = ""
        self.follows = True
        self.reading = ENDED
        self.failure = ""
        self._drawn: tuple[object, ...] = ()
        self._count = 0

    def compose(self) -> ComposeResult:
        yield Field(placeholder="words to look for", id="search", compact=True)
        yield LogPanel(id="log", classes="panel")

    def on_mount(self) -> None:
        self.query_one("#search").display = False

    def focus_first(self) -> None:
        """The log itself has the keys for scrolling."""
        self.query_one("#log").focus()

    def begin(self, run: str, host: str) -> None:
        """Show another run's or host's log from its first line."""
        self.entries.clear()
        self.run, self.host, self._count = run, host, 0
        self.reading, self.failure = READING, ""

    def end(self, failure: str = "") -> None:
        """No more lines come: the log has ended, or it can't be read on."""
        self.reading, self.failure = FAILED if failure else ENDED, failure

    def add(self, entry: LoggedLine) -> None:
        """A line came, by its time: what one host's processes wrote may arrive after what others wrote later."""
        at, time = len(self.entries), entry.line.time
        while at and self.entries[at - 1].line.time > time:
            at -= 1
        if at == len(self.entries):
            self.entries.append(entry)
        elif at or len(self.entries) < KEPT:
            if len(self.entries) == KEPT:
                self.entries.popleft()
                at -= 1
            self.entries.insert(at, entry)
        self._count += 1

    def next_source(self) -> None:
        """The next kind of process."""
        self.source = SOURCES[(SOURCES.index(self.source) + 1) % len(SOURCES)]

    @property
    def shown(self) -> list[LoggedLine]:
        """The lines that match."""
        words = self.filter.lower().split()
        return [
            entry
            for entry in self.entries
            if (self.source == ALL or source_of(entry.line.process) == self.source)
            and all(word in f"{entry.host}/{entry.line.process} {entry.line.line}".lower() for word in words)
        ]

    @property
    def copied(self) -> str:
        """What is shown, as plain lines."""
        return "\n".join(plain_line(entry) for entry in self.shown)

    def draw(self, view: View, width: int, height: int) -> None:
        """What matches, the newest at the bottom."""
        panel = self.query_one("#log", LogPanel)
        self.give_heights({"log": height - (1 if self.query_one("#search").display else 0)})
        where = self.host or "all machines"
        how = f", {self.reading}" if self.reading and self.run else ""
        how += "" if self.follows else f", paused: {view.key_of('follow')} follows again"
        found = f", matching “{self.filter}”" if self.filter else ""
        self.titled("log", f"{self.run or 'Logs'}, {where}, {self.source}{found}{how}", _sources(self.source, view))
        drawn = (self._count, self.reading, self.source, self.filter, width, self.host, self.run)
        if drawn == self._drawn:
            return
        if not self.follows and self._drawn and drawn[2:] == self._drawn[2:]:
            return
        self._drawn = drawn
        shown, palette = self.shown, view.palette
        lines = log_lines(shown, view, width - INSIDE) if shown else [Text(self._empty(view), style=palette.muted)]
        if self.failure:
            said = f"{self.failure} (6 reads it again)"
            lines = lines if shown else []
            lines += [Text(part, style=palette.bad) for part in wrapped(said, width - INSIDE)]
        panel.show(lines)
        if self.follows:
            panel.scroll_to(y=max(0, len(lines) - (height - FRAME)), animate=False, immediate=True)

    def _empty(self, view: View) -> str:
        if self.entries:
            return "Nothing matches."
        if self.reading == READING or (not self.run and view.run is not None):
            return "Waiting for the first line."
        if not self.run:
            return f"There is nothing to read. {view.no_run}" if view.state.hosts else NO_HOSTS
        return f"{self.run} logged nothing{f' on {self.host}' if self.host else ''}."

    def start_filter(self) -> None:
        """Ask for the text to look for."""
        field = self.query_one("#search", Input)
        field.display = True
        self.screen.set_focus(field)  # now: the next key is for it

    def end_filter(self, *, keep: bool) -> None:
        """Take the field away."""
        self.query_one("#search").display = False
        if not keep:
            self.filter = ""
            self.query_one("#search", Input).value = ""
        self.focus_first()
        self.post_message(Table.Filtered())

    @on(Input.Changed, "#search")
    def _changed(self, event: Input.Changed) -> None:
        self.filter = event.value
        self.post_message(Table.Filtered())

    @on(Input.Submitted, "#search")
    def _submitted(self) -> None:
        self.end_filter(keep=True)


def _sources(current: str, view: View) -> Text:
    line = Text()
    for source in SOURCES:
        style = f"bold {view.palette.accent}" if source == current else view.palette.muted
        line.append(f" {source} ", style=style)
    return line


def plain_line(entry: LoggedLine) -> str:
    """One line for a file or the clipboard."""
    return f"{fmt.clock(entry.line.time)} {entry.host}/{one_line(entry.line.process)} {_text(entry)}"


def _text(entry: LoggedLine) -> str:
    """What the line says; of our own decisions without the name of the module, which the file has."""
    return one_line(_OURS.sub(r"\g<level>", entry.line.line), _LONGEST) if entry.line.line.strip() else ""


def log_lines(entries: Sequence[LoggedLine], view: View, width: int) -> list[Text]:
    """The lines with time and process; what is wider than the panel goes on below."""
    label = min(22, max(cell_len(f"{entry.host}/{entry.line.process}") for entry in entries))
    return [line for entry in entries for line in _lines_of(entry, label, view.zone, width, view.palette)]


@lru_cache(maxsize=2 * KEPT)
def _lines_of(entry: LoggedLine, label: int, zone: tzinfo | None, width: int, palette: Palette) -> tuple[Text, ...]:
    name = f"{entry.host}/{one_line(entry.line.process)}"
    line = Text(f"{fmt.clock(entry.line.time, zone)} ", style=palette.muted)
    line.append(f"{set_cell_size(name, label)} ", style=palette.push)
    raw = entry.line.line.expandtabs(4)
    text, colour = _text(entry), _colour(entry, palette)
    room = max(10, width - line.cell_len)
    indent = min(len(raw) - len(raw.lstrip(" ")), room // 2)
    first, *rest = wrapped(text, room - indent) if indent + cell_len(text) > room else [text]
    below = " " * (line.cell_len + indent)
    return (
        line.append(" " * indent + first, style=colour),
        *(Text(below).append(part, style=colour) for part in rest),
    )


def _colour(entry: LoggedLine, palette: Palette) -> str:
    text = entry.line.line
    levels = _LEVEL.findall(text)
    bad = "Traceback" in text or "Error" in text or "ERROR" in levels or "CRITICAL" in levels
    return palette.bad if bad else palette.warning if "WARNING" in levels else palette.foreground
