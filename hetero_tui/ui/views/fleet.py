"""The fleet: every machine on a line, the run's figures, the events; with no machines yet, how to add some."""

from __future__ import annotations

from dataclasses import replace

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical

from hetero_tui.intents import BUSY
from hetero_tui.state import HostView, RunView
from hetero_tui.text import loss_figure
from hetero_tui.ui import format as fmt
from hetero_tui.ui.arrangement import FRAME, Arrangement, arrange
from hetero_tui.ui.details import details_lines
from hetero_tui.ui.draw.curve import curve, loss_blocks, scale_label
from hetero_tui.ui.draw.phases import is_starting, phases_lines, start_title
from hetero_tui.ui.draw.step_time import (
    NOT_YET,
    WorkerTime,
    last_times,
    moved_words,
    recent_times,
    step_time_lines,
    timeline_lines,
    verdict,
)
from hetero_tui.ui.header import makes_no_steps
from hetero_tui.ui.screens.tutorial import tutorial_lines, tutorial_title
from hetero_tui.ui.sentences import evaluation_words, idle_lines, outcome_line
from hetero_tui.ui.view import View
from hetero_tui.ui.views.pane import INSIDE, Pane
from hetero_tui.ui.widgets.hosts import Hosts
from hetero_tui.ui.widgets.lines import EventLog, Lines

_CURVE_FROM = 6
"""Lines of the loss panel, borders included, from which it is a curve and not one line of blocks."""


class FleetPane(Pane):
    """View 1."""

    def __init__(self) -> None:
        super().__init__()
        self._arranged: tuple[Arrangement, bool] | None = None

    def compose(self) -> ComposeResult:
        yield Hosts(id="hosts")
        yield Lines(id="tutorial", classes="panel")
        yield Lines(id="outcome")
        with Container(id="figures"):
            yield Lines(id="loss", classes="panel")
            with Vertical(id="times"):
                yield Lines(id="time", classes="panel")
                yield Lines(id="timeline", classes="panel")
                yield Lines(id="rate", classes="panel")
        yield Lines(id="idle", classes="panel")
        with Horizontal(id="below"):
            yield EventLog(id="events", classes="panel")
            yield Lines(id="details", classes="panel")

    @property
    def table(self) -> Hosts:
        """The table of hosts."""
        return self.query_one("#hosts", Hosts)

    @property
    def copied(self) -> str:
        """The marked host, or the events where those have the focus."""
        events = self.query_one(EventLog)
        return events.text if events.has_focus else super().copied

    def on_mount(self) -> None:
        for name, title in (("events", "Events"), ("idle", "What now")):
            self.query_one(f"#{name}").border_title = title

    def draw(self, view: View, width: int, height: int) -> None:
        """Draw everything that changed."""
        state, run = view.state, view.state.run
        times = recent_times(run) if run is not None else ()
        empty = not state.hosts and view.busy != BUSY
        first_steps = tutorial_lines(view, width - INSIDE) if empty else []
        if len(first_steps) > height - FRAME:
            first_steps = [line for line in first_steps if line.plain]
        arranged = arrange(
            width,
            height + 2,
            hosts=len(first_steps) or len(state.hosts),
            workers=len(times),
            run=run is not None,
            final=run is not None and run.state.final,
        )
        if empty and len(first_steps) + FRAME > arranged.hosts and arranged.events:
            arranged = replace(arranged, hosts=min(height, len(first_steps) + FRAME), events=0, idle=0)
            arranged = replace(arranged, events=height - arranged.hosts if height - arranged.hosts > FRAME else 0)
        self._arrange(arranged, empty=empty)
        if empty:
            self.titled("tutorial", tutorial_title(view))
            self.lines("tutorial").show(first_steps)
        else:
            self.table.draw(view, width - INSIDE if arranged.framed else width - 1)
        if run is not None:
            self._draw_run(run, times, arranged, view, width)
        if arranged.idle:
            self.lines("idle").show(idle_lines(view, width - INSIDE, arranged.idle - FRAME))
        if arranged.events:
            self.query_one(EventLog).draw(view, width - arranged.details_width - INSIDE)
        if arranged.details_width:
            self._draw_details(self._marked(view), arranged, view)

    def _draw_run(
        self, run: RunView, times: tuple[WorkerTime, ...], arranged: Arrangement, view: View, width: int
    ) -> None:
        palette = view.palette
        if arranged.outcome:
            self.lines("outcome").show([outcome_line(run, width, view)])
        half = width // 2 if arranged.side_by_side else width
        if arranged.loss and is_starting(view.state):
            self.titled("loss", start_title(view.state))
            lines = phases_lines(view.state, view.now, half - INSIDE, palette)
            self.lines("loss").show(lines if arranged.loss >= _CURVE_FROM else _current(lines))
        elif arranged.loss:
            below = Text(evaluation_words(run), style=palette.foreground) if run.evaluated is not None else None
            with_speed = not arranged.rate and not makes_no_steps(view.state, view.now)
            self.titled("loss", _loss_title(run, with_speed=with_speed), below)
            self.lines("loss").show(
                curve(run.losses, run.faults, half - INSIDE, arranged.loss - FRAME, palette, none=none_yet(run))
                if arranged.loss >= _CURVE_FROM
                else [loss_blocks(run.losses, half - INSIDE, palette, none_yet(run))]
            )
        self._draw_times(run, times, arranged, view, (width - half if arranged.side_by_side else width) - INSIDE)

    def _draw_times(
        self, run: RunView, times: tuple[WorkerTime, ...], arranged: Arrangement, view: View, width: int
    ) -> None:
        palette = view.palette
        none = none_yet(run)
        if arranged.time:
            steps = f", mean of {fmt.plural(len(run.steady), 'step')}" if run.recent else ""
            conclusion = verdict(times)
            colour = palette.warning if conclusion.startswith("link") else palette.foreground
            self.titled("time", f"Where a step's time goes{steps}", Text(conclusion, style=colour))
            self.lines("time").show(
                step_time_lines(times, width, arranged.time - FRAME, palette, staged=bool(run.stages), none=none)
            )
        if arranged.timeline and not run.recent:
            self.titled("timeline", "The last step from start to end")
            self.lines("timeline").show(timeline_lines((), width, arranged.timeline - FRAME, palette, none))
        elif arranged.timeline:
            last = run.recent[-1]
            self.titled("timeline", f"Step {last.step:,}: {moved_words(run)}")
            lines = timeline_lines(last_times(run), width, arranged.timeline - FRAME, palette)
            self.lines("timeline").show(lines)
        if arranged.rate:
            speeds = [(step.step, step.samples / step.seconds) for step in run.recent if step.seconds > 0]
            is_known = run.recent and not makes_no_steps(view.state, view.now)
            self.titled("rate", f"Speed {fmt.throughput(run.samples_per_second)}" if is_known else "Speed")
            label = scale_label([speed for _, speed in speeds])
            height = arranged.rate - FRAME
            self.lines("rate").show(curve(speeds, (), width, height, palette, label=label, none=none))

    def _draw_details(self, host: HostView | None, arranged: Arrangement, view: View) -> None:
        if host is None:
            return
        self.titled("details", host.name)
        lines = details_lines(host, view.state.run, view.now, arranged.details_width - INSIDE, view.palette)
        self.lines("details").show(lines)

    def _marked(self, view: View) -> HostView | None:
        marked = self.table.rows.marked
        return None if marked is None else view.state.host(marked)

    def _arrange(self, arranged: Arrangement, *, empty: bool) -> None:
        """Give every panel its place; nothing is laid out again while that stays the same."""
        if self._arranged == (arranged, empty):
            return
        had_none = self._arranged is not None and self._arranged[1]
        if had_none and not empty:  # what is not shown can't have the focus
            self.call_after_refresh(self.focus_first)
        self._arranged = (arranged, empty)
        self.set_class(not arranged.framed, "frameless")
        self.set_class(arranged.side_by_side, "side-by-side")
        self.give_heights(
            {
                "hosts": 0 if empty else arranged.hosts,
                "tutorial": arranged.hosts if empty else 0,
                "outcome": arranged.outcome,
                "figures": arranged.figures,
                "loss": arranged.loss,
                "times": arranged.time + arranged.timeline + arranged.rate,
                "time": arranged.time,
                "timeline": arranged.timeline,
                "rate": arranged.rate,
                "idle": 0 if empty else arranged.idle,
                "below": arranged.events + (arranged.idle if empty else 0),
            }
        )
        details = self.query_one("#details")
        details.display = arranged.details_width > 0
        details.styles.width = arranged.details_width


def _current(lines: list[Text]) -> list[Text]:
    """The one line that there is room for: the part that is under way."""
    return [line for line in lines if line.plain.startswith("◔")] or lines[:1]


def none_yet(run: RunView) -> str:
    """What a panel says that has no step to draw."""
    if run.behind is not None:
        return "its history is being read"
    return "it made no step" if run.state.final else NOT_YET


def _loss_title(run: RunView, *, with_speed: bool) -> str:
    loss = "Loss" if run.loss is None else f"Loss {loss_figure(run.loss)}"
    speed = run.samples_per_second
    return loss if speed is None or not with_speed else f"{loss}, {fmt.throughput(speed)}"
