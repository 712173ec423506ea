"""The run: its start part by part, the loss, the speed, and where the time of its steps goes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, Vertical

from hetero_tui.state import RunView
from hetero_tui.text import loss_figure
from hetero_tui.ui import format as fmt
from hetero_tui.ui.arrangement import FRAME, SIDE_BY_SIDE
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.draw.curve import Points, curve, loss_blocks, scale_label, smoothed
from hetero_tui.ui.draw.phases import is_starting, phases_lines, start_title
from hetero_tui.ui.draw.stages import bubble_words, stages_lines, stages_title
from hetero_tui.ui.draw.step_time import (
    last_times,
    moved_words,
    recent_times,
    step_time_lines,
    timeline_lines,
    verdict,
)
from hetero_tui.ui.sentences import evaluation_words, outcome_lines
from hetero_tui.ui.view import View
from hetero_tui.ui.views.pane import INSIDE, NO_HOSTS, Pane
from hetero_tui.ui.widgets.lines import Lines

_ZOOMS = ("all steps", "the last tenth", "the last 100 steps")
_LEAST = FRAME + 4


class RunPane(Pane):
    """View 2."""

    def __init__(self) -> None:
        super().__init__()
        self.is_logarithmic = False
        self.is_smooth = False
        self.zoom = 0

    def compose(self) -> ComposeResult:
        yield Lines(id="outcome")
        with Container(id="plots"):
            with Vertical(id="left"):
                yield Lines(id="loss", classes="panel")
            with Vertical(id="right"):
                yield Lines(id="stages", classes="panel")
                yield Lines(id="time", classes="panel")
                yield Lines(id="timeline", classes="panel")
                yield Lines(id="rate", classes="panel")

    def draw(self, view: View, width: int, height: int) -> None:
        """Phases until the first step, then the plots."""
        run, palette = view.run, view.palette
        beside = width >= SIDE_BY_SIDE
        self.set_class(beside, "side-by-side")
        ended = outcome_lines(run, width, height - _LEAST, view) if run is not None and run.state.final else []
        if run is None or not run.losses:
            ended = ended[:1]  # the panel has the reason
        self.lines("outcome").show(ended)
        outcome = len(ended)
        room = height - outcome
        half = width // 2 if beside else width
        starting = run is view.state.run and is_starting(view.state)
        if run is None or starting or not run.losses:
            none = dict.fromkeys(("stages", "rate", "time", "timeline"), 0)
            self.give_heights({"outcome": outcome, "plots": room, "loss": room} | none)
            self.set_class(False, "side-by-side")
            self.query_one("#right").display = False
            self.titled("loss", start_title(view.state) if starting else "Run")
            inside = width - INSIDE
            lines = phases_lines(view.state, view.now, inside, palette) if starting else _nothing(run, view, inside)
            self.lines("loss").show(lines)
            return
        times = recent_times(run)
        heights = _heights(room, len(times), len(run.stages), beside=beside) | {"outcome": outcome, "plots": room}
        self.query_one("#right").display = any(heights[name] for name in ("stages", "time", "timeline", "rate"))
        self.give_heights(heights)
        self._draw_loss(run, half - INSIDE, heights["loss"] - FRAME, view)
        right = (width - half if beside else width) - INSIDE
        if heights["stages"]:
            self.titled("stages", stages_title(run), Text(bubble_words(run)))
            self.lines("stages").show(stages_lines(run, right, heights["stages"] - FRAME, palette))
        if heights["rate"]:
            points = [(step.step, step.samples / step.seconds) for step in run.recent if step.seconds > 0]
            label = scale_label([value for _, value in points])
            self.titled("rate", f"Speed {fmt.throughput(run.samples_per_second)}, {_mean_of(run.recent)}")
            self.lines("rate").show(curve(points, (), right, heights["rate"] - FRAME, palette, label=label))
        if heights["time"]:
            self.titled("time", f"Where a step's time goes, {_mean_of(run.steady)}", Text(verdict(times)))
            self.lines("time").show(
                step_time_lines(times, right, heights["time"] - FRAME, palette, staged=bool(run.stages))
            )
        if heights["timeline"] and run.recent:
            last = run.recent[-1]
            self.titled("timeline", f"Step {last.step:,}: {moved_words(run)}")
            self.lines("timeline").show(timeline_lines(last_times(run), right, heights["timeline"] - FRAME, palette))

    def _draw_loss(self, run: RunView, width: int, height: int, view: View) -> None:
        points = zoomed(run, self.zoom)
        if self.is_smooth:
            points = smoothed(points)
        how = [_ZOOMS[self.zoom]] + ["smoothed"] * self.is_smooth + ["log scale"] * self.is_logarithmic
        below = Text(evaluation_words(run), style=view.palette.foreground) if run.evaluated is not None else None
        self.titled("loss", f"Loss {loss_figure(run.loss)}, {', '.join(how)}", below)
        if height < 3:
            self.lines("loss").show([loss_blocks(points, width, view.palette)])
            return
        log = self.is_logarithmic
        self.lines("loss").show(curve(points, run.faults, width, height, view.palette, logarithmic=log))


def zoomed(run: RunView, zoom: int) -> Points:
    """The losses of all steps, of the last tenth of them, or of the last hundred; two at least, if there are so many.

    Of a long run only some are kept, but all of the last steps.
    """
    if not zoom or not run.losses:
        return run.losses
    last = {step.step: step.loss for step in run.recent if step.loss is not None}
    points = sorted((dict(run.losses) | last).items())
    end = points[-1][0]
    after = end - (end // 10 if zoom == 1 else 100)
    return [point for point in points[:-2] if point[0] > after] + points[-2:]


def _heights(room: int, workers: int, stages: int, *, beside: bool) -> dict[str, int]:
    """The lines of each panel; the picture of the stages goes before the timeline and the speed."""
    picture = FRAME + 1 + stages if stages else 0
    if beside:
        tall = FRAME + 1 + 2 * max(1, workers)
        picture = picture if room - picture >= _LEAST else 0
        time = min(room - picture, tall)
        left = room - picture - time
        timeline = tall if left >= tall + _LEAST else 0
        rate = left - timeline
        if rate < _LEAST:
            time, rate = time + rate, 0
        return {"loss": room, "stages": picture, "rate": rate, "time": time, "timeline": timeline}
    time = FRAME + 1 + max(1, min(workers, 6))
    if room - time < _LEAST:
        time = 0
    picture = picture if room - time - picture >= _LEAST else 0
    rest = room - time - picture
    rate = rest // 3 if rest // 3 >= _LEAST else 0
    return {"loss": rest - rate, "stages": picture, "rate": rate, "time": time, "timeline": 0}


def _mean_of(steps: Sequence[object]) -> str:
    return f"mean of {fmt.plural(len(steps), 'step')}" if steps else ""


def _nothing(run: RunView | None, view: View, width: int) -> list[Text]:
    palette = view.palette
    if not view.state.hosts:
        return [Text(NO_HOSTS, style=palette.foreground)]
    if run is None:
        past = [Text("5 shows the runs that there were.", style=palette.muted)] if view.state.runs else []
        return [Text(view.no_run, style=palette.foreground), *past]
    said = "makes no steps of its own: press 6 for its output" if run.script else "made no step"
    why = [Text(part, style=palette.muted) for part in wrapped(run.detail, width)]
    return [Text(f"{run.run} {said}.", style=palette.foreground), *why]
