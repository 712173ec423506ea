"""The main screen: status, hosts, loss, where the time goes, events, keys; or, with no hosts yet, how to add some."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.geometry import Size
from textual.screen import Screen

from hetero_tui.state import HostView, RunView
from hetero_tui.ui import format as fmt
from hetero_tui.ui.arrangement import FRAME, Arrangement, arrange
from hetero_tui.ui.details import details_lines
from hetero_tui.ui.draw.curve import curve, loss_blocks
from hetero_tui.ui.draw.step_time import WorkerTime, last_times, recent_times, step_time_lines, timeline_lines, verdict
from hetero_tui.ui.keys import shown_keys
from hetero_tui.ui.opening import BUSY
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.screens.tutorial import tutorial_lines
from hetero_tui.ui.sentences import evaluation_words, keys_line, outcome_line, status_line
from hetero_tui.ui.view import View
from hetero_tui.ui.widgets.events import EventLog
from hetero_tui.ui.widgets.hosts import Hosts
from hetero_tui.ui.widgets.lines import Lines

_INSIDE = FRAME + 2
"""Cells of a line that a panel's borders, its left padding and its scroll bar (or right padding) take."""

_CURVE_FROM = 6
"""Lines of the loss panel, borders included, from which it is a curve and not one line of blocks."""


class MainScreen(Screen[None]):
    """Draws a :class:`~hetero_tui.ui.view.View`; holds nothing but the cursor and the filter.

    When it needs a frame of its own it calls ``redraw``, which draws all screens and survives a mistake in one.
    """

    def __init__(self, redraw: Callable[[], None]) -> None:
        super().__init__()
        self._redraw = redraw
        self._drawn = Size(0, 0)
        self._arranged: tuple[Arrangement, bool] | None = None
        self._titles: dict[str, tuple[str, str]] = {}

    def compose(self) -> ComposeResult:
        yield Lines(id="status")
        yield Hosts(id="hosts")
        yield Lines(id="tutorial")
        yield Lines(id="outcome")
        with Container(id="figures"):
            yield Lines(id="loss")
            with Vertical(id="times"):
                yield Lines(id="time")
                yield Lines(id="timeline")
                yield Lines(id="rate")
        with Horizontal(id="below"):
            yield EventLog(id="events")
            yield Lines(id="details")
        yield Lines(id="keys")

    @property
    def hosts(self) -> Hosts:
        """The panel of hosts."""
        return self.query_one(Hosts)

    def on_mount(self) -> None:
        for name, title in (("tutorial", "No machines yet"), ("events", "Events")):
            self.query_one(f"#{name}").border_title = title
        self.hosts.rows.focus()
        # Before the first layout, with the terminal's size: laying out and painting once is what makes it quick.
        self._redraw()

    def on_resize(self) -> None:
        if self.app.size != self._drawn:
            self._redraw()

    def draw(self, view: View) -> None:
        """Draw everything that changed, for the terminal's size."""
        self._drawn = self.app.size
        width, height = self._drawn
        state, run, palette = view.state, view.state.run, view.palette
        times = recent_times(run) if run is not None else ()
        first_steps = tutorial_lines(view.inventory_path, palette)
        arranged = arrange(
            width,
            height,
            hosts=len(state.hosts) or len(first_steps),
            workers=len(times),
            run=run is not None,
            final=run is not None and run.state.final,
        )
        empty = not state.hosts and view.busy != BUSY
        self._arrange(arranged, empty=empty)
        self._lines("status").show([status_line(state, view.busy, view.now, view.zone, width, palette)])
        keys = shown_keys(state, view.busy, view.quit_key, view.more_keys)
        self._lines("keys").show([keys_line(keys, width, palette)])
        if empty:
            self._lines("tutorial").show(first_steps)
        else:
            self.hosts.draw(view, width - _INSIDE if arranged.framed else width - 1)
        if run is not None:
            self._draw_run(run, times, arranged, view, width)
        if arranged.events:
            self.query_one(EventLog).draw(view, width - arranged.details_width - _INSIDE)
        if arranged.details_width:
            self._draw_details(self._marked(view), arranged, view)

    def _draw_run(
        self, run: RunView, times: tuple[WorkerTime, ...], arranged: Arrangement, view: View, width: int
    ) -> None:
        palette = view.palette
        if arranged.outcome:
            self._lines("outcome").show([outcome_line(run, width, palette)])
        half = width // 2 if arranged.side_by_side else width
        if arranged.loss:
            below = Text(evaluation_words(run), style=palette.foreground) if run.evaluated is not None else None
            self._titled("loss", _loss_title(run, with_speed=not arranged.rate), below)
            self._lines("loss").show(
                curve(run.losses, run.markers, half - _INSIDE, arranged.loss - FRAME, palette)
                if arranged.loss >= _CURVE_FROM
                else [loss_blocks(run.losses, half - _INSIDE, palette)]
            )
        self._draw_times(run, times, arranged, palette, (width - half if arranged.side_by_side else width) - _INSIDE)

    def _draw_times(
        self, run: RunView, times: tuple[WorkerTime, ...], arranged: Arrangement, palette: Palette, width: int
    ) -> None:
        if arranged.time:
            steps = f", mean of {fmt.plural(len(run.recent), 'step')}" if run.recent else ""
            conclusion = verdict(times)
            colour = palette.warning if conclusion.startswith("link") else palette.foreground
            self._titled("time", f"Where a step's time goes{steps}", Text(conclusion, style=colour))
            self._lines("time").show(step_time_lines(times, width, arranged.time - FRAME, palette))
        if arranged.timeline and run.recent:
            last = run.recent[-1]
            moved = f"{fmt.size(last.bytes_pushed)} pushed, {fmt.size(last.bytes_pulled)} pulled"
            self._titled("timeline", f"Step {last.step:,} from start to end, {moved}")
            lines = timeline_lines(last_times(run), width, arranged.timeline - FRAME, palette)
            self._lines("timeline").show(lines)
        if arranged.rate:
            speeds = [(step.step, step.samples / step.seconds) for step in run.recent if step.seconds > 0]
            self._titled("rate", f"Speed {fmt.throughput(run.samples_per_second)}")
            lines = curve(speeds, (), width, arranged.rate - FRAME, palette, label=lambda speed: f"{speed:,.0f}")
            self._lines("rate").show(lines)

    def _draw_details(self, host: HostView | None, arranged: Arrangement, view: View) -> None:
        if host is None:
            return
        self._titled("details", host.name)
        lines = details_lines(host, view.state.run, view.now, arranged.details_width - _INSIDE, view.palette)
        self._lines("details").show(lines)

    def _marked(self, view: View) -> HostView | None:
        marked = self.hosts.rows.marked
        return None if marked is None else view.state.host(marked)

    def _lines(self, name: str) -> Lines:
        return self.query_one(f"#{name}", Lines)

    def _titled(self, name: str, title: str, below: Text | None = None) -> None:
        """A panel's titles; set only when they change, since that draws the border again."""
        panel, titles = self.query_one(f"#{name}"), (title, below.plain if below else "")
        if self._titles.get(name) != titles:
            self._titles[name] = titles
            panel.border_title = Text(title)
            panel.border_subtitle = below

    def _arrange(self, arranged: Arrangement, *, empty: bool) -> None:
        """Give every panel its place; nothing is laid out again while that stays the same."""
        if self._arranged == (arranged, empty):
            return
        self._arranged = (arranged, empty)
        self.set_class(not arranged.framed, "frameless")
        self.set_class(arranged.side_by_side, "side-by-side")
        heights = {
            "hosts": 0 if empty else arranged.hosts,
            "tutorial": arranged.hosts if empty else 0,
            "outcome": arranged.outcome,
            "figures": arranged.figures,
            "loss": arranged.loss,
            "times": arranged.time + arranged.timeline + arranged.rate,
            "time": arranged.time,
            "timeline": arranged.timeline,
            "rate": arranged.rate,
            "below": arranged.events,
        }
        for name, height in heights.items():
            panel = self.query_one(f"#{name}")
            panel.display = height > 0
            panel.styles.height = height
        details = self.query_one("#details")
        details.display = arranged.details_width > 0
        details.styles.width = arranged.details_width

    def on_hosts_filtered(self) -> None:
        self._redraw()

    def on_host_lines_marked(self) -> None:
        self._redraw()


def _loss_title(run: RunView, *, with_speed: bool) -> str:
    loss = "Loss" if run.loss is None else f"Loss {fmt.loss(run.loss)}"
    speed = run.samples_per_second
    return loss if speed is None or not with_speed else f"{loss}, {fmt.throughput(speed)}"
