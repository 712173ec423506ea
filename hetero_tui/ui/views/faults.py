"""The faults of a run: a line for each, with what was done about it and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult

from hetero_tui.events import HostState
from hetero_tui.faults import SLOW, furthest
from hetero_tui.state import Fault, RunView
from hetero_tui.ui import format as fmt
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.draw.phases import catching_up_words, how_it_starts
from hetero_tui.ui.draw.tables import Col, fitting, table_line, titles_line
from hetero_tui.ui.header import age_of, is_out_of_sight
from hetero_tui.ui.keys import without
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.view import View
from hetero_tui.ui.views.pane import INSIDE, NO_HOSTS, Pane
from hetero_tui.ui.widgets.table import CURSOR, Entry, Table
from remote_agent.states import RunState
from remote_agent.wording import share

_HOST, _WHAT = Col(title="HOST", width=12), Col(title="WHAT", width=20, grows=True)
_DONE = Col(title="DONE", width=18, rank=2, grows=True)
_COLUMNS = (
    Col(title="#", width=3, right=True),
    Col(title="TIME", width=8, rank=3),
    _HOST,
    _WHAT,
    _DONE,
    Col(title="STALL", width=10, right=True, rank=1),
    Col(title="BACK", width=16),
)


class FaultsPane(Pane):
    """View 4."""

    def compose(self) -> ComposeResult:
        yield FaultsTable(id="faults")

    @property
    def table(self) -> Table:
        """The table of faults."""
        return self.query_one("#faults", Table)

    def draw(self, view: View, width: int, height: int) -> None:
        """The newest fault first."""
        run, palette = view.run, view.palette
        self.give_heights({"faults": height})
        inside = width - INSIDE - CURSOR
        faults = list(reversed(run.faults)) if run is not None else []
        columns = _columns(faults)
        if self.table.sorted_by:
            faults.sort(key=_ORDERS[self.table.sorted_by])
        entries = [
            Entry(key=str(fault.number), line=table_line(columns, _cells(fault, view), inside)) for fault in faults
        ]
        marked = self.table.rows.marked or (entries[0].key if entries else None)  # of the first picture the first one
        chosen = next((fault for fault in faults if str(fault.number) == marked), None)
        below = _whole(chosen, columns, view, inside) if chosen is not None else []
        self.table.fill(
            f"Faults of {run.run}" if run is not None else "Faults",
            titles_line(columns, inside, palette),
            entries,
            palette,
            (*below, *foot(run, view, inside, palette)),
        )


_ORDERS = {
    "host": lambda fault: fault.host,
    "stall": lambda fault: -(fault.stall_s or 0.0),
}


class FaultsTable(Table):
    """The faults; sorted by time unless asked for otherwise."""

    orders = ("", *_ORDERS)
    newest_first = True


def _columns(faults: Sequence[Fault]) -> list[Col]:
    """The columns; what short names of hosts and what happened do not need is for what was done."""
    if not faults:
        return [*_COLUMNS]
    longest = max([len(_HOST.title), *(len(fault.host) for fault in faults)])
    host = replace(_HOST, width=min(longest, _HOST.width))
    what = replace(
        _WHAT,
        width=_WHAT.width + _HOST.width - host.width,
        wanted=max(cell_len(_what(fault)) for fault in faults),
    )
    done = replace(_DONE, wanted=max(cell_len(fault.done) for fault in faults))
    return [{_HOST: host, _WHAT: what, _DONE: done}.get(column, column) for column in _COLUMNS]


def _what(fault: Fault) -> str:
    glyph = "✔" if fault.back is not None else "▲"
    what = f"{fault.word}: {fault.what}" if fault.word not in fault.what else fault.what
    return f"{glyph} {what}{f' ×{fault.tries + 1}' if fault.tries else ''}"


def _cells(fault: Fault, view: View) -> list[Text]:
    palette = view.palette
    return [
        Text(str(fault.number), style=palette.muted),
        Text(fmt.clock(_here(fault.time, view), view.zone), style=palette.muted),
        Text(fault.host, style=f"bold {palette.foreground}"),
        Text(_what(fault), style=palette.accent if fault.back is not None else palette.warning),
        Text(fault.done or "-", style=palette.foreground),
        Text(_stall(fault, view), style=palette.foreground),
        _back(fault, view),
    ]


def _here(time: float, view: View) -> float:
    """A time of a fault on the laptop's clock; of the clocks of a run of the past nothing is known."""
    return time if view.run is view.opened else view.state.here(time)


def _stall(fault: Fault, view: View) -> str:
    """What it cost; as long as no new step has been made since, the time up to now, or to the run's end."""
    if fault.stall_s is not None:
        return fmt.took(fault.stall_s)
    run = view.run
    if run is not None and _ended(fault, run):
        return "to end"
    last = furthest(run) if run is not None and not run.state.final else None
    if last is not None and last.time <= fault.time and fault.stall_with is None:
        if is_out_of_sight(view.state, view.now):
            return fmt.UNKNOWN
        return f"{fmt.took(age_of(last.time, view.state, view.now))}…"
    return "none" if fault.stall_with is None else f"with {fault.stall_with}"


def _ended(fault: Fault, run: RunView) -> bool:
    """Whether the run made no new step after a fault, and ended before its last one."""
    if not run.state.final or run.state is RunState.FINISHED or fault.word == SLOW or fault.stall_with is not None:
        return False
    last = furthest(run)
    return last.time <= fault.time if last is not None else not run.step


def _whole(fault: Fault, all_columns: Sequence[Col], view: View, width: int) -> list[Text]:
    """The fault with what its line has no room for; nothing where that has it all."""
    cells = _cells(fault, view)
    columns = fitting(all_columns, width)
    if len(columns) == len(all_columns) and all(cells[place].cell_len <= room for place, _, room in columns):
        return []
    _, when, host, what, done, stall, _ = (cell.plain for cell in cells)
    done = f"; {done}" if fault.done else ""
    said = f"{fault.number}: {when} {host} {what[2:]}{done}; stall {stall}"
    return [Text(part, style=view.palette.foreground) for part in wrapped(said, width)]


def _back(fault: Fault, view: View) -> Text:
    palette = view.palette
    if fault.back is not None:
        return Text(fault.over or f"after {fmt.took(fault.back - fault.time)}", style=palette.foreground)
    if view.run is not None and view.run.state.final:
        return Text("slow to the end" if fault.word == "slow" else "never", style=palette.muted)
    worker = next((each for each in view.run.workers if each.worker == fault.worker), None) if view.run else None
    if worker is not None and worker.is_coming:
        return Text("coming back", style=palette.warning)
    if worker is not None and worker.drained:
        return Text("drained", style=palette.muted)
    left = 0.0 if fault.retry_s is None else _here(fault.time + fault.retry_s, view) - view.now
    if left > 0:
        return Text(f"next try in {fmt.duration(max(1.0, left))}", style=palette.warning)
    return Text("still slow" if fault.word == "slow" else "not yet", style=palette.warning)


def foot(run: RunView | None, view: View, width: int, palette: Palette) -> list[Text]:
    """The sums: faults, seconds stalled and their part of the time; which hosts are missing, and until when."""
    if run is None:
        return [Text(view.no_run if view.state.hosts else NO_HOSTS, style=palette.foreground)]
    if run.behind is not None:
        return [Text(catching_up_words(run, run.behind), style=palette.foreground)]
    if not run.faults:
        return [Text("No fault." if run.state.final else "No fault so far.", style=palette.accent)]
    stalled, passed = run.stalled_seconds, run.seconds
    part = f" ({share(stalled / passed, 1)})" if passed else ""
    cost = f"{fmt.took(stalled)} stalled{part}" if stalled else "no stall"
    if any(_ended(fault, run) and fault.stall_s is None for fault in run.faults):
        cost = f"{cost}, then to the end" if stalled else "stalled to the end"
    said = f"{fmt.plural(run.faults[-1].number, 'fault')} · {cost}"
    line = Text(said, style=palette.foreground)
    if run.state.final:
        return [line]
    missing = _missing(run, view)
    if not missing:
        return [line]
    more = Text(missing, style=palette.warning)
    return [line.append(" · ").append_text(more)] if line.cell_len + 3 + more.cell_len <= width else [line, more]


def _missing(run: RunView, view: View) -> str:
    """Which hosts the run does without, and until when."""
    if run.is_starting:
        return f"the run is {how_it_starts(run)}"
    gone = {name: view.state.host(name) for name in run.paused_hosts}
    others = {
        word: sum(host is not None and host.state is word for host in gone.values())
        for word in (HostState.UNREACHABLE, HostState.RESTARTING, HostState.RETURNING, HostState.FAILED)
    }
    partly = {
        name: without(run, name)
        for name, host in gone.items()
        if host is not None and host.state in (HostState.TRAINING, HostState.SLOW)
    }
    whole = len(gone) - sum(others.values()) - len(partly)
    paused = [fmt.plural(whole, "host")] if whole else []
    paused += [f"{fmt.plural(devices, 'device')} of {name}" for name, devices in partly.items()]
    now = view.now
    if paused:
        tries = [_here(worker.retry_at, view) - now for worker in run.workers if worker.retry_at is not None]
        left = min((each for each in tries if each > 0), default=None)
        when = "" if left is None else f", next try in {fmt.duration(max(1.0, left))}"
        back = f" ({view.key_of('bring_back')} brings it back now)" if view.key_of("bring_back") else ""
        return f"{' and '.join(paused)} paused{when}{back}"
    ends = {HostState.UNREACHABLE: ", tried again by itself"}
    said = [f"{fmt.plural(count, 'host')} {word.words}{ends.get(word, '')}" for word, count in others.items() if count]
    return ", ".join(said)
