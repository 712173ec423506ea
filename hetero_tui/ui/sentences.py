"""The lines around the panels: the keys below, the outcome of a run, what to do now, and the event log's lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import tzinfo
from functools import lru_cache

from rich.style import Style
from rich.text import Text

from hetero_tui.events import ClusterState, HostState
from hetero_tui.intents import half_way
from hetero_tui.state import IN_CLUSTER, LogLine, RunView, State
from hetero_tui.text import loss_figure
from hetero_tui.ui import format as fmt
from hetero_tui.ui import look
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.draw.phases import phase_words
from hetero_tui.ui.header import ending, script_under_way
from hetero_tui.ui.keys import RUN, is_resumable
from hetero_tui.ui.palette import Palette
from hetero_tui.ui.view import View
from remote_agent.states import RunState


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
    click = Style(meta={"@click": f"app.{action}"}) if action else Style.null()
    strong, quiet = Style.parse(f"bold {palette.accent}"), Style.parse(palette.muted)
    return Text.assemble((key, strong + click), (f" {word}", quiet + click))


def outcome_lines(run: RunView, width: int, most: int, view: View) -> list[Text]:
    """How a run ended, in at most ``most`` lines of ``width`` cells: in one, with the reason below if that cuts it.

    The reason says what to do, too; no other view has it whole once the event log has moved on.
    """
    first = outcome_line(run, width, view)
    if not run.detail or run.detail in first.plain:
        return [first]
    reason = [Text(f" {part}", style=view.palette.foreground) for part in wrapped(run.detail, max(10, width - 2))]
    return [outcome_line(replace(run, detail=""), width, view), *reason][: max(1, most)]


def outcome_line(run: RunView, width: int, view: View) -> Text:
    """How a run ended: its figures, or why it failed."""
    palette = view.palette
    shown = look.RUN[run.state]
    line = Text.assemble((f" {shown.glyph} {run.run} {ending(run)}", f"bold {shown.colour(palette)}"))
    facts = [fmt.figure(name, value) for name, value in run.evaluation.items()]
    if run.state is RunState.FINISHED and run.loss is not None:
        facts.append(f"{'best' if run.script else 'final'} loss {loss_figure(run.loss)}")
    more = [f"{view.key_of('resume')} resumes it"] if is_resumable(run) and view.key_of("resume") else []
    if run.state is not RunState.FINISHED and run.detail:
        reason = run.detail.partition(" -> ")[0]  # what to do is in the events, and in the Run view
        room = width - line.cell_len - 4 - sum(len(fact) + 3 for fact in more)
        whole = f" … ({RUN}: all of it)"
        facts.append(reason if len(reason) <= room else f"{reason[: max(0, room - len(whole))].rstrip()}{whole}")
    if run.state in (RunState.FINISHED, RunState.STOPPED):
        if run.seconds is not None:
            facts.append(f"in {fmt.took(run.seconds)}")
        if run.checkpoint and not run.script:
            facts.append(f"checkpoint of step {run.checkpoint_step:,}" if run.checkpoint_step else "checkpoint saved")
    for index, fact in enumerate((*facts, *more)):
        if index and line.cell_len + len(fact) + 4 > width:
            break
        line.append("   ").append(fact, style=palette.foreground)
    line.truncate(max(0, width - 1), overflow="ellipsis")
    return line


def idle_lines(view: View, width: int, height: int) -> list[Text]:
    """What there is to do while no run is on, and the newest runs."""
    state, palette = view.state, view.palette
    doing = phase_words(state, view.now) or (f"{view.busy} …" if view.busy else "")
    lines = [Text(f"◔ {doing}", style=palette.foreground) if doing else _what_now(view)]
    for run in reversed((state.listed_runs or ())[-(height - 1) :]):
        shown = look.RUN[RunState(run.state)]
        said = Text(f"{shown.glyph} ", style=shown.colour(palette))
        when = "" if run.started is None else fmt.day(run.started, view.now, view.zone)
        steps = "" if run.script else f", {fmt.plural(run.step, 'step')}" if run.step else ", no step"
        loss = "" if run.loss is None else f", loss {loss_figure(run.loss)}"
        said.append(f"{run.id}  {run.state}{steps}{loss}  {when}")
        said.stylize(palette.foreground, 2)
        lines.append(said)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _what_now(view: View) -> Text:
    state, palette = view.state, view.palette
    if view.awaits_run or script_under_way(state) is not None:
        return Text(view.no_run, style=palette.foreground)
    up = state.cluster_state in (ClusterState.UP, ClusterState.DEGRADED)
    ready, said = ready_words(state, "machine")
    words = (
        {"train": "train", "teardown": "tear the cluster down"} if up else {"up": "start the cluster", "train": "train"}
    )
    if ready is None:
        words = {}
    elif not ready:
        words = {"open": "says why", "probe": "look again"}
    line = Text(said, style=palette.foreground)
    offered = [(view.key_of(action), word) for action, word in words.items() if view.key_of(action)]
    for index, (key, word) in enumerate(offered):
        line.append(" · " if index else ": ", style=palette.muted if index else palette.foreground)
        line.append(key, style=f"bold {palette.accent}").append(f" {word}", style=palette.foreground)
    return line


def ready_words(state: State, noun: str) -> tuple[int | None, str]:
    """How many hosts are ready, and that in words; None as long as the first look at them goes on and none is."""
    ready = sum(host.state in (*IN_CLUSTER, HostState.READY) for host in state.hosts)
    open_ones = sum(host.state in (HostState.UNKNOWN, HostState.CONNECTING) for host in state.hosts)
    if open_ones and not ready:
        return None, f"looking at {fmt.plural(len(state.hosts), noun)} …"
    looked = f", {open_ones} still looked at" if open_ones else ""
    return ready, f"{ready} of {fmt.plural(len(state.hosts), noun)} ready{looked}"


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
    often = f" (came {line.count:,} times)" if line.count > 1 else ""
    parts = wrapped(f"{line.text}{often}", max(10, width - indent))
    first = head.append(parts[0], style=colour)
    return (first, *(Text(" " * indent).append(part, style=colour) for part in parts[1:]))


def farewell(state: State, busy: str) -> str:
    """What is said on leaving: what was cut off, or that the run or the cluster goes on, and how to come back to it."""
    if left := half_way(busy):
        return f"{left[0].upper()}{left[1:]}"
    run = state.run
    is_live = run is not None and not run.state.final
    is_up = state.cluster_state in (ClusterState.UP, ClusterState.DEGRADED)
    if state.is_silent and (is_live or is_up):
        return "No machine answers, so what goes on there is not known. Look again with: hetero-tui status"
    if run is not None and is_live:
        return f"{run.run} goes on without this screen. Come back with: hetero-tui attach {run.run}"
    return "The cluster stays up. End it with: hetero-tui down" if is_up else ""
