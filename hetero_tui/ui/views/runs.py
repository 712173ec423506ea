"""The runs that there were: a line for each; one is opened, resumed, or compared with another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult

from hetero_tui.events import HostState
from hetero_tui.state import RunView
from hetero_tui.text import loss_figure
from hetero_tui.ui import format as fmt
from hetero_tui.ui import look
from hetero_tui.ui.arrangement import FRAME
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.draw.bars import blocks
from hetero_tui.ui.draw.curve import curve
from hetero_tui.ui.draw.tables import GAP, Col, fitting, table_line, titles_line
from hetero_tui.ui.header import shortened
from hetero_tui.ui.keys import RUNS, is_resumable
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.view import View
from hetero_tui.ui.views.pane import INSIDE, NO_HOSTS, Pane
from hetero_tui.ui.widgets.lines import Lines
from hetero_tui.ui.widgets.table import CURSOR, Entry, Table
from remote_agent.states import RunState

if TYPE_CHECKING:
    from remote_agent import protocol

_AWAY = (HostState.UNREACHABLE, HostState.REFUSED)
_LONGEST_NAME = 20
_CURVE = 16
_JOB = 1
"""The place of the job among the columns."""

_COLUMNS = (
    Col(title="RUN", width=14),
    Col(title="JOB", width=12, rank=4),
    Col(title="STATE", width=11),
    Col(title="STEPS", width=9, right=True),
    Col(title="LOSS", width=8, right=True),
    Col(title="", width=_CURVE, rank=3),
    Col(title="STARTED", width=14, rank=2),
    Col(title="TOOK", width=11, right=True, rank=1),
    Col(title="HOST", width=10, rank=5, grows=True),
)

_ORDERS: dict[str, Callable[[Any], Any]] = {
    "job": lambda run: run.job,
    "loss": lambda run: run.loss if run.loss is not None else float("inf"),
    "steps": lambda run: -run.step,
}


class RunsPane(Pane):
    """View 5."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: tuple[str, ...] = ()
        self.compared: tuple[RunView, ...] = ()

    def compose(self) -> ComposeResult:
        yield RunsTable(id="runs")
        yield Lines(id="compared", classes="panel")

    @property
    def table(self) -> Table:
        """The table of runs."""
        return self.query_one("#runs", Table)

    def about(self, view: View) -> protocol.RunSummary | None:
        """The marked run."""
        marked = self.table.rows.marked
        return next((run for run in view.state.listed_runs or () if run.id == marked), None)

    def choose(self) -> None:
        """Choose the run under the cursor to be compared, or no more; of three the first is left out."""
        marked = self.table.rows.marked
        if marked in self.chosen:
            self.chosen = tuple(run for run in self.chosen if run != marked)
        elif marked is not None:
            self.chosen = (*self.chosen[-1:], marked)

    def draw(self, view: View, width: int, height: int) -> None:
        """The newest run first."""
        palette = view.palette
        below = max(FRAME + 8, height // 2) if self.compared and height >= 18 else 0
        self.give_heights({"runs": height - below, "compared": below})
        inside = width - INSIDE - CURSOR
        found = sorted(view.state.listed_runs or (), key=lambda run: run.started or 0.0, reverse=True)
        if self.table.sorted_by:
            found.sort(key=_ORDERS[self.table.sorted_by])
        columns = _columns(found, inside)
        entries = [Entry(key=run.id, line=table_line(columns, _cells(run, self.chosen, view), inside)) for run in found]
        marked = self.about(view) or (found[0] if found else None)  # of the first picture the first one
        job = [] if marked is None or marked.script else _whole_job(marked, columns, view, inside)
        foot = [*job, *_foot(view, self.chosen, marked, inside)]
        self.table.fill("Runs", titles_line(columns, inside, palette), entries, palette, foot)
        if below:
            self.titled("compared", " and ".join(run.run for run in self.compared))
            self.lines("compared").show(compared_lines(self.compared, width - INSIDE, below - FRAME, palette))


def _columns(runs: Sequence[protocol.RunSummary], width: int) -> list[Col]:
    """The columns; long names of runs, as sweeps have, and of jobs get their room as far as it goes."""
    name, job, *others = _COLUMNS
    longest = max((len(run.id) + 1 for run in runs), default=0)
    name = replace(name, width=max(name.width, min(longest, _LONGEST_NAME)))
    kept = [replace(column, grows=False) for column in (name, job, *others)]
    spare = width - sum(column.width + GAP for _, column, _ in fitting(kept, width)) + GAP
    longest = max((cell_len(run.job) for run in runs), default=0)
    return [name, replace(job, width=max(job.width, min(longest, job.width + spare))), *others]


def _whole_job(run: protocol.RunSummary, columns: Sequence[Col], view: View, width: int) -> list[Text]:
    """The job of a run whose line has no room for all of it; nothing where it has."""
    room = next((room for place, _, room in fitting(columns, width) if place == _JOB), 0)
    if cell_len(run.job) <= room:
        return []
    return [Text(part, style=view.palette.foreground) for part in wrapped(f"the job of {run.id}: {run.job}", width)]


class RunsTable(Table):
    """The runs; sorted by time unless asked for otherwise."""

    orders = ("", *_ORDERS)
    newest_first = True


def _cells(run: protocol.RunSummary, chosen: tuple[str, ...], view: View) -> list[Text]:
    palette = view.palette
    shown = look.RUN[RunState(run.state)]
    is_old = _is_old(run, view)
    end = run.ended if run.ended is not None else None if is_old else view.now
    if run.script and run.state is RunState.LOST:
        end = None  # its last event is that of its start
    took = None if run.started is None or end is None else max(0.0, end - run.started - run.away_s)
    name = f"{'+' if run.id in chosen else ''}{shortened(run.id, _LONGEST_NAME - 1)}"
    return [
        Text(name, style=f"bold {palette.accent if run.id in chosen else palette.foreground}"),
        Text(run.job, style=palette.foreground),
        Text(f"{shown.glyph} {run.state}", style=palette.muted if is_old else shown.colour(palette)),
        Text("-" if run.script else f"{run.step:,}", style=palette.foreground),
        Text("-" if run.script and run.loss is None else loss_figure(run.loss), style=palette.foreground),
        Text(blocks(run.curve, _CURVE), style=palette.accent),
        Text("-" if run.started is None else fmt.day(run.started, view.now, view.zone), style=palette.muted),
        Text(fmt.took(took), style=palette.foreground),
        Text(run.host, style=palette.muted),
    ]


def _is_old(run: protocol.RunSummary, view: View) -> bool:
    """Whether a run went on when its machine, which does not answer now, was asked last: it may have ended since."""
    host, own = view.state.host(run.host), view.state.run
    is_own = own is not None and own.run == run.id
    return not (RunState(run.state).final or is_own) and host is not None and host.state in _AWAY


def _foot(view: View, chosen: tuple[str, ...], marked: protocol.RunSummary | None, width: int) -> list[Text]:
    said = [_foot_words(view, chosen, marked), *_not_asked(view)]
    return [Text(part, style=text.style) for text in said for part in wrapped(text.plain, width)]


def _not_asked(view: View) -> list[Text]:
    """Which machines' runs are not known as they are now."""
    away = [host.name for host in view.state.hosts if host.state in _AWAY]
    if not away or not view.state.runs:
        return []
    names = away[0] if len(away) == 1 else fmt.plural(len(away), "machine")
    word = "does not answer: its" if len(away) == 1 else "do not answer: their"
    return [Text(f"{names} {word} runs may be missing here, or have gone on", style=view.palette.warning)]


def _foot_words(view: View, chosen: tuple[str, ...], marked: protocol.RunSummary | None) -> Text:
    palette = view.palette
    if not view.state.hosts:
        return Text(NO_HOSTS, style=palette.foreground)
    if view.state.runs is None:
        return Text("The machines are being asked for their runs.", style=palette.muted)
    if not view.state.runs:
        if view.state.is_silent:
            return Text("No machine answers, so their runs are not known.", style=palette.warning)
        return Text(f"The machines that answer have no run. {view.no_run}", style=palette.foreground)
    if len(chosen) == 2:
        return Text(f"{view.key_of('compare')} compares {chosen[0]} and {chosen[1]}", style=palette.foreground)
    words = {"open": "opens", "mark": "marks two to compare", "logs": "its logs"}
    live = view.state.run is not None and not view.state.run.state.final
    if marked is not None and is_resumable(marked) and not live and not view.busy:
        words["resume"] = "resumes"
    here = {key.action: key.key for key in view.keys if RUNS in key.views}
    return Text(" · ".join(f"{here[action]} {word}" for action, word in words.items() if action in here), palette.muted)


def _in_lines(figures: Sequence[str], width: int) -> list[str]:
    """The figures one after the other in lines of at most ``width`` cells."""
    lines: list[str] = []
    for figure in figures:
        if lines and len(lines[-1]) + 3 + len(figure) <= width:
            lines[-1] += f"   {figure}"
        else:
            lines.append(figure)
    return lines


def compared_lines(runs: tuple[RunView, ...], width: int, height: int, palette: Palette) -> list[Text]:
    """Two runs: their curves one under the other, and their figures side by side."""
    label = max(len(run.run) for run in runs)
    lines = []
    for run in runs:
        shown = look.RUN[run.state]
        figures = [
            f"{shown.glyph} {run.state}",
            fmt.plural(run.step, "step"),
            f"loss {loss_figure(run.loss)}",
            f"batch {run.batch_size:,}",
            f"in {fmt.took(run.seconds)}",
            fmt.throughput(run.samples_per_second),
            fmt.plural(run.faults[-1].number if run.faults else 0, "fault"),
            *(fmt.figure(name, value) for name, value in run.evaluation.items()),
        ]
        for index, part in enumerate(_in_lines(figures, width - label - 2)):
            line = Text(f"{'' if index else run.run:<{label}}  ", style=f"bold {palette.accent}")
            lines.append(line.append(part, style=palette.foreground))
    each = max(4, (height - len(lines)) // max(1, len(runs)))
    for run in runs:
        lines += curve(run.losses, (), width, each, palette) if run.losses else [Text("no step", style=palette.muted)]
    return lines[:height]
