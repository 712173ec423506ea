"""The lines around the panels: status above, keys below, the outcome of a run, and the event log's lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from functools import lru_cache

from rich.style import Style
from rich.text import Text

from hetero_tui.events import ClusterState, RunState
from hetero_tui.state import LogLine, RunView, State
from hetero_tui.ui import format as fmt
from hetero_tui.ui import look
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.draw.bars import use_bar
from hetero_tui.ui.palette import Palette


def status_line(state: State, busy: str, now: float, zone: tzinfo | None, width: int, palette: Palette) -> Text:
    """The line at the top; what matters least goes first where it is narrow, and the clock stays at the right."""
    time = Text(fmt.clock(now, zone, seconds=False), style=palette.muted)
    segments = [*_cluster_segments(state, busy, palette), *_run_segments(state.run, width, palette)]
    room = width - 2 - time.cell_len
    while segments and sum(text.cell_len + 3 for _, text in segments) - 3 > room:
        segments.remove(max(segments, key=lambda segment: segment[0]))
    line = Text(" ")
    for index, (_, text) in enumerate(segments):
        line.append("   " if index else "").append_text(text)
    if width < time.cell_len + 2:
        return Text(" " * width)
    line.truncate(max(0, width - time.cell_len - 2))
    return line.append(" " * (width - line.cell_len - time.cell_len - 1)).append_text(time).append(" ")


def _cluster_segments(state: State, busy: str, palette: Palette) -> list[tuple[int, Text]]:
    """Pairs of rank (0 stays longest) and text."""
    segments = [
        (7, Text("hetero-tui", style=f"bold {palette.accent}")),
        (4, Text(state.cluster, style=palette.foreground)),
    ]
    if state.hosts:
        shown = look.CLUSTER[state.cluster_state]
        up = "" if state.cluster_state is ClusterState.DOWN else f" {state.hosts_up}/{len(state.hosts)}"
        word = f"{shown.glyph} {state.cluster_state}{up}"
        segments.append((0, Text(word, style=shown.colour(palette))))
    if busy and busy != state.cluster_state:
        segments.append((3, Text(f"… {busy}", style=palette.foreground)))
    if state.head is not None and state.cluster_state is not ClusterState.DOWN:
        segments.append((9, Text(f"head {state.head}", style=palette.muted)))
    return segments


def _run_segments(run: RunView | None, width: int, palette: Palette) -> list[tuple[int, Text]]:
    if run is None:
        return []
    shown = look.RUN[run.state]
    word = f"{shown.glyph} {run.run}" + ("" if run.state is RunState.RUNNING else f" {run.state}")
    segments = [(6, Text(word, style=shown.colour(palette)))]
    step = Text(f"step {run.step:,}/{run.iterations:,}" if run.iterations else f"step {run.step:,}")
    step.stylize(palette.foreground)
    if run.iterations and width >= 160:
        step.append(" ").append_text(use_bar(run.step / run.iterations, 20, palette))
        step.append(fmt.percent(run.step / run.iterations), style=palette.foreground)
    segments.append((2, step))
    if run.state.final:
        return segments
    if run.remaining_seconds is not None:
        segments.append((5, Text(f"eta {fmt.duration(run.remaining_seconds)}", style=palette.foreground)))
    if run.samples_per_second is not None:
        segments.append((8, Text(fmt.throughput(run.samples_per_second), style=palette.foreground)))
    return segments


def keys_line(keys: Sequence[tuple[str, str, str]], width: int, palette: Palette) -> Text:
    """The line at the bottom: pairs of key and word with the action they stand for, the last one at the right.

    ``keys`` are (key, word, action), the most wanted first after the first; the ones at the end go where it is narrow.
    A click on one does what its key does.
    """
    *inner, last = [_key(*key, palette) for key in keys]
    gap = 3
    while inner and 2 + sum(text.cell_len + gap for text in inner) + last.cell_len > width:
        if gap > 2:
            gap -= 1
        else:
            inner.pop()
    line = Text(" ")
    for index, text in enumerate(inner):
        line.append(" " * (gap if index else 0)).append_text(text)
    return line.append(" " * max(1, width - line.cell_len - last.cell_len - 1)).append_text(last)


def _key(key: str, word: str, action: str, palette: Palette) -> Text:
    click = Style(meta={"@click": f"app.{action}"})
    strong, quiet = Style.parse(f"bold {palette.accent}"), Style.parse(palette.muted)
    return Text.assemble((key, strong + click), (f" {word}", quiet + click))


def outcome_line(run: RunView, width: int, palette: Palette) -> Text:
    """How a run ended: its figures, or why it failed."""
    shown = look.RUN[run.state]
    line = Text.assemble((f" {shown.glyph} {run.run} {run.state}", f"bold {shown.colour(palette)}"))
    facts = [fmt.figure(name, value) for name, value in run.evaluation.items()]
    if run.state in (RunState.FAILED, RunState.LOST):
        facts = [run.detail] if run.detail else []
    else:
        if run.loss is not None:
            facts.append(f"final loss {fmt.loss(run.loss)}")
        facts.append(fmt.plural(run.step, "step"))
        if run.started is not None and run.ended is not None:
            facts.append(f"in {fmt.duration(run.ended - run.started)}")
        if run.checkpoint:
            facts.append(f"checkpoint {run.checkpoint}")
    for index, fact in enumerate(facts):
        if index and line.cell_len + len(fact) + 4 > width:
            break
        line.append("   ").append(fact, style=palette.foreground)
    line.truncate(max(0, width - 1), overflow="ellipsis")
    return line


def evaluation_words(run: RunView) -> str:
    """The newest evaluation, and which was the best: ``val loss 0.231, accuracy 93.1% at step 120, best at 100``."""
    newest, best = run.evaluated, run.best
    if newest is None:
        return ""
    figures = [fmt.figure(name, value) for name, value in newest.metrics.items() if value is not None]
    where = f"{', '.join(figures) or 'no finite figure'} at step {newest.step:,}"
    if best is None:
        return where
    return f"{where}, the best" if best.step == newest.step else f"{where}, best at {best.step:,}"


@lru_cache(maxsize=2000)
def log_lines(line: LogLine, zone: tzinfo | None, width: int, palette: Palette) -> tuple[Text, ...]:
    """One line of the log as lines of at most ``width`` cells; what does not fit goes on below, indented."""
    shown = look.LEVEL[line.level]
    head = Text(f"{fmt.clock(line.time, zone)}  ", style=palette.muted)
    head.append(f"{shown.glyph} ", style=shown.colour(palette))
    indent = head.cell_len
    colour = palette.bad if shown.role == "bad" else palette.foreground
    parts = wrapped(line.text, max(10, width - indent))
    first = head.append(parts[0], style=colour)
    return (first, *(Text(" " * indent).append(part, style=colour) for part in parts[1:]))


def farewell(state: State) -> str:
    """What is said on leaving: that the run or the cluster goes on, and how to come back to it; or nothing."""
    run = state.run
    if run is not None and not run.state.final:
        return f"{run.run} goes on without this screen. Come back with: hetero-tui attach {run.run}"
    if state.cluster_state in (ClusterState.UP, ClusterState.DEGRADED):
        return "The cluster stays up. End it with: hetero-tui down"
    return ""
