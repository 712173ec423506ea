"""A model that is cut by its layers, as a picture: which blocks each stage holds, where, and how much it idles."""

from __future__ import annotations

import math

from rich.text import Text

from hetero_tui.state import RunView
from hetero_tui.ui import format as fmt
from hetero_tui.ui.draw.step_time import recent_times
from hetero_tui.ui.draw.tables import Col, fitting, table_line, titles_line
from hetero_tui.ui.palette import Palette

_COLUMNS = (
    Col(title="STAGE", width=12),
    Col(title="BLOCKS", width=7, right=True),
    Col(title="", width=6, rank=3, grows=True),
    Col(title="DEVICE", width=6, rank=2),
    Col(title="NEEDS", width=8, rank=1, right=True),
    Col(title="MICRO", width=7, rank=4, right=True),
    Col(title="IDLE", width=5, right=True),
)
_PICTURE = 2


def stages_title(run: RunView) -> str:
    """How many stages, and what goes through them."""
    plan = run.plan
    if plan is None:
        return "Stages"
    micro = f"{fmt.plural(plan.micro_batches, 'micro-batch')}, {plan.in_flight} in flight"
    return f"{fmt.plural(len(plan.stages), 'stage')}: {micro}"


def bubble_words(run: RunView) -> str:
    """The part of a step in which the stages do not compute: as measured, and as it was predicted."""
    plan = run.plan
    if plan is None or not plan.stages:
        return ""
    slowest = max(stage.seconds for stage in plan.stages)
    busy = plan.micro_batches * math.fsum(stage.seconds for stage in plan.stages)
    step = math.fsum(stage.seconds for stage in plan.stages) + (plan.micro_batches - 1) * slowest
    planned = 1 - busy / (len(plan.stages) * step) if step > 0 else None
    times = [time for time in recent_times(run) if not time.word]
    total = math.fsum(time.total for time in times)
    measured = 1 - math.fsum(time.parts[0] for time in times) / total if total else None
    return f"bubble {fmt.percent(measured).strip()}, {fmt.percent(planned).strip()} planned"


def stages_lines(run: RunView, width: int, height: int, palette: Palette) -> list[Text]:
    """A line a stage, below titles: its blocks among all, its device and memory, and its idle part of a step.

    Where not all have room, the first ones are shown.
    """
    blocks = run.stages[-1].last if run.stages else 0
    lines = [titles_line(_COLUMNS, width, palette)]
    times = {time.worker: time for time in recent_times(run)}
    views = {worker.worker: worker for worker in run.workers}
    picture = next((room for place, room in _rooms(width) if place == _PICTURE), 0)
    for number, stage in enumerate(run.stages, 1):
        view, time = views.get(stage.worker), times.get(stage.worker)
        idle = 1 - time.parts[0] / time.total if time is not None and time.total else None
        words = [
            f"{number} {view.host if view is not None else stage.worker}",
            stage.span,
            "",
            view.device if view is not None else "",
            fmt.size(stage.memory),
            fmt.milliseconds(stage.seconds),
            "-" if idle is None else fmt.percent(idle).strip(),
        ]
        gone = view is not None and not view.alive
        cells = [Text(word, style=palette.muted if gone else palette.foreground) for word in words]
        cells[_PICTURE] = _bar(stage.first, stage.last, blocks, picture, palette)
        lines.append(table_line(_COLUMNS, cells, width))
    if len(lines) > height > 1:
        left = len(lines) - height + 1
        lines = [*lines[: height - 1], Text(f"and {fmt.plural(left, 'stage')} more", style=palette.muted)]
    return lines[: max(0, height)]


def _rooms(width: int) -> list[tuple[int, int]]:
    return [(place, room) for place, _, room in fitting(_COLUMNS, width)]


def _bar(first: int, last: int, blocks: int, width: int, palette: Palette) -> Text:
    """The stage's blocks among all of them; a stage has one cell at least."""
    begin = min(width - 1, math.floor(first / blocks * width))
    end = max(begin + 1, math.floor(last / blocks * width))
    bar = Text("·" * begin, style=palette.faint)
    return bar.append("█" * (end - begin), style=palette.accent).append("·" * (width - end), style=palette.faint)
