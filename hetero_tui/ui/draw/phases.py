"""The start of a run, part by part with its seconds: what there is to see before the first step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from hetero_tui.state import COORDINATOR, FIRST_STEP, MEASURING, TAKEOVER, WORKERS, Behind, Phase, RunView, State
from hetero_tui.ui import format as fmt
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.palette import Palette

_WHAT = {
    "cluster": "Ray starts on every machine",
    COORDINATOR: "the code is sent, torch is loaded on the head",
    WORKERS: "each worker loads torch and makes the model",
    MEASURING: "how fast each device and each link is",
    FIRST_STEP: "the batch is cut, the first step is computed",
    TAKEOVER: "it asks the workers where they stand",
}

_USUAL = {"cluster": 8.0, COORDINATOR: 6.0, WORKERS: 12.0, MEASURING: 2.0, FIRST_STEP: 1.0}
"""Seconds that each part takes on a small computer; for "first step in about", which is no promise."""


def phases_of(state: State) -> tuple[Phase, ...]:
    """The parts of the start that have begun: the cluster's, where it was started just before, and the run's.

    All are on the laptop's clock.
    """
    run, cluster = state.run, state.cluster_phase
    own = tuple(
        replace(phase, began=state.here(phase.began), ended=phase.ended and state.here(phase.ended))
        for phase in (run.phases if run is not None else ())
    )
    if cluster is not None and cluster.ended is None:
        return (cluster,)
    began = own[0].began if own else None
    is_recent = cluster is not None and cluster.ended is not None and began is not None and began - cluster.ended < 60
    return (cluster, *own) if is_recent and cluster is not None else own


def is_starting(state: State) -> bool:
    """Whether a run or a cluster is being started, or a run's history is read, and that is what there is to see."""
    cluster = state.cluster_phase
    if cluster is not None and cluster.ended is None:
        return True
    return state.run is not None and (state.run.is_starting or state.run.behind is not None)


def _live_run(state: State) -> RunView | None:
    """The run that is started; of one that has ended nothing is to come when its cluster is started again."""
    return None if state.run is None or state.run.state.final else state.run


def start_title(state: State) -> str:
    """What the panel of :func:`phases_lines` is called."""
    if state.run is not None and state.run.behind is not None:
        return "History"
    run = _live_run(state)
    word = "starting" if run is None else how_it_starts(run)
    return {"starting": "Start", "resuming": "Resume", "recovering": "Recovery"}[word]


def how_it_starts(run: RunView) -> str:
    """Whether a run is started, resumed after it had ended, or recovers from a fault, in a word."""
    if run.superseded is not None:
        return "recovering"
    return "resuming" if run.step or run.history else "starting"


def catching_up_words(run: RunView, behind: Behind) -> str:
    """How far the history of a run that was attached to has been read."""
    steps = f": step {min(run.step, behind.step):,} of {behind.step:,}" if behind.step else ""
    return f"catching up{steps}"


def phases_lines(state: State, now: float, width: int, palette: Palette) -> list[Text]:
    """A line for each part: done with its seconds, under way with a word of what it does, and to come."""
    if state.run is not None and state.run.behind is not None:
        return [Text(catching_up_words(state.run, state.run.behind), style=palette.foreground)]
    known = phases_of(state)
    order = [COORDINATOR, WORKERS, MEASURING, FIRST_STEP] if _live_run(state) is not None or not known else []
    order = [] if known and known[-1].name == TAKEOVER else order  # the workers are there, unless it says otherwise
    lines = []
    for phase in known:
        if phase.ended is not None:
            lines.append(_line("✔", phase.name, fmt.took(phase.ended - phase.began), "", palette.accent, palette))
        else:
            spent = fmt.spent(now - phase.began)
            line = _line("◔", phase.name, spent, _WHAT[phase.name], palette.foreground, palette)
            if line.cell_len > width:
                line = _line("◔", phase.name, spent, "", palette.foreground, palette)
                below = wrapped(_WHAT[phase.name], max(10, width - 2))
                lines += [line, *(Text(f"  {part}", style=palette.muted) for part in below)]
            else:
                lines.append(line)
    # What comes after the last one: a run that is started again from a checkpoint has its coordinator already.
    last = known[-1].name if known else ""
    to_come = order[order.index(last) + 1 :] if last in order else order
    lines += [_line("·", name, "", "", palette.muted, palette) for name in to_come]
    plan = state.run.plan if state.run is not None else None
    said = _estimate(known, to_come, now, (plan.predicted_step_s if plan is not None else None) or 0.0) if order else ""
    if said:
        lines.append(Text(f"  {said}", style=palette.muted))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _estimate(known: Sequence[Phase], to_come: Sequence[str], now: float, step_s: float) -> str:
    """When the first step is expected. What is known of this fleet's pace are the parts that are done.

    A part that takes longer than that is said to: when it ends is not known, and the time must not count up.
    ``step_s`` are the seconds of a step by the run's plan; 0: it has none yet.
    """
    done = [phase for phase in known if phase.ended is not None]
    spent = sum((phase.ended or now) - phase.began for phase in done)
    pace = max(1.0, spent / sum(_USUAL[phase.name] for phase in done)) if done else 1.0
    usual = {name: pace * seconds for name, seconds in _USUAL.items()}
    usual[FIRST_STEP] = max(usual[FIRST_STEP], step_s)
    later = sum(usual[name] for name in to_come)
    if len(done) == len(known):
        return f"first step in about {fmt.duration(max(1.0, later))}" if later else ""
    left = usual[known[-1].name] - (now - known[-1].began)
    if left > 0:
        return f"first step in about {fmt.duration(max(1.0, left + later))}"
    return "longer than usual" + (f"; then about {fmt.duration(max(1.0, later))} to the first step" if later else "")


def phase_words(state: State, now: float) -> str:
    """The part that is under way, in a few words; empty where none is."""
    if state.run is not None and state.run.behind is not None:
        return catching_up_words(state.run, state.run.behind)
    known = phases_of(state)
    if not known or known[-1].ended is not None:
        return ""
    return f"{known[-1].name} {fmt.spent(now - known[-1].began)}: {_WHAT[known[-1].name]}"


def _line(glyph: str, name: str, seconds: str, what: str, colour: str, palette: Palette) -> Text:
    line = Text.assemble((f"{glyph} ", colour), (f"{name:<18}", palette.foreground if seconds else palette.muted))
    line.append(f"{seconds:>10}", style=colour)
    return line.append(f"  {what}", style=palette.muted) if what else line
