"""The header, the same in every view: each figure has a place of its own, which it keeps while it changes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from hetero_tui.events import ClusterState, HostState
from hetero_tui.intents import ASKING
from hetero_tui.state import RunView, State
from hetero_tui.ui import format as fmt
from hetero_tui.ui import look
from hetero_tui.ui.cells import is_stale
from hetero_tui.ui.draw.bars import use_bar
from hetero_tui.ui.draw.phases import catching_up_words, how_it_starts
from hetero_tui.ui.keys import FAULTS, VIEWS
from hetero_tui.ui.palette import Palette
from remote_agent.states import RunState, stands_at

if TYPE_CHECKING:
    from remote_agent.protocol import RunSummary

_GAP = 2
_VERDICT, _SHORT_VERDICT = 16, 14
_NOTE, _NOTE_RANK = 8, 3
_NAME_RANK = 4
_BAR_RANK = 9
"""A figure of this rank goes before a name is cut."""
_LEFT, _SHORT_LEFT = 12, 11
_SPEED, _SHORT_SPEED = 15, 8
_AGE, _SHORT_AGE = 19, 14
_WIDE = 150
_BAR = 8
_LEAST_NAME = 8
"""Cells of a run's name where there is no room for all of it."""

_OLD, _TOO_OLD = 3.0, 10.0
"""The age of the last step is grey from so many steps on, and orange; and from so many seconds on at least."""


_ABSENT = {
    HostState.PAUSED: "paused",
    HostState.UNREACHABLE: "away",
    HostState.FAILED: "failed",
    HostState.RESTARTING: "restarting",
    HostState.RETURNING: "coming back",
    HostState.BENCHED: "benched",
    HostState.DRAINED: "drained",
}
"""Hosts that the verdict's count of those that train leaves open, in the words for them."""

_QUESTIONS = (ASKING, "looking for the run", "reading events", "reading the sweep")
"""Operations that only read: they do not hide how a run stands."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A figure with the width that it keeps; of those that do not fit, the one of the highest ``rank`` goes first.

    ``least``: the cells that it has where there is not room for all, with ``short`` for a text that does not fit, and
    the middle of ``name`` in it left out.
    """

    rank: int
    width: int
    text: Text
    right: bool = False
    least: int | None = None
    short: str = ""
    name: str = ""

    @property
    def named(self) -> int:
        """The cells that it needs with its whole name."""
        return self.width if self.least is None else self.least

    @property
    def needed(self) -> int:
        return self.named - max(0, len(self.name) - _LEAST_NAME)

    def fitting(self) -> Text:
        """Its text in as many words as fit."""
        fits = not self.short or self.text.cell_len <= self.width
        text = self.text.copy() if fits else Text(self.short, style=self.text.style)
        excess = text.cell_len - self.width
        if self.name and excess > 0:
            name = shortened(self.name, len(self.name) - excess)
            text = Text(text.plain.replace(self.name, name, 1), style=text.style)
        text.truncate(self.width, overflow="ellipsis")
        return text


def header_line(state: State, busy: str, now: float, zone: tzinfo | None, width: int, palette: Palette) -> Text:
    """Cluster, verdict, run, step, progress, time left, speed, age of the last step, and the time of day."""
    clock = Text(fmt.clock(now, zone, seconds=False), style=palette.muted)
    if width < clock.cell_len + 2:
        return Text(" " * width)
    places = [*_fleet_places(state, busy, now, palette), *_run_places(state, now, palette, is_wide=width >= _WIDE)]
    room = width - 2 - _GAP - clock.cell_len
    while len(places) > 1:
        last = max(places, key=lambda place: place.rank)
        least = [place.named if last.rank >= _BAR_RANK else place.needed for place in places]
        if sum(cells + _GAP for cells in least) - _GAP <= room:
            break
        places.remove(last)
    spare = room - sum(place.needed + _GAP for place in places) + _GAP
    widths = [place.needed for place in places]
    whole = [min(place.width, max(place.named, place.text.cell_len)) for place in places]
    for wanted in ([place.named for place in places], whole, [place.width for place in places]):
        for number, cells in enumerate(wanted):
            more = max(0, min(spare, cells - widths[number]))
            widths[number], spare = widths[number] + more, spare - more
    places = [replace(place, width=cells) for place, cells in zip(places, widths, strict=True)]
    places = [_grown(place, _absent(state), spare) if place.rank == _NOTE_RANK else place for place in places]
    line = Text(" ")
    for place in places:
        text = place.fitting()
        space = " " * (place.width - text.cell_len)
        line.append_text(Text(space).append_text(text) if place.right else text.append(space))
        line.append(" " * _GAP)
    line.truncate(max(0, width - clock.cell_len - 2))
    return line.append(" " * (width - line.cell_len - clock.cell_len - 1)).append_text(clock).append(" ")


def shortened(name: str, width: int) -> str:
    """A name in ``width`` cells: what tells it from others is at its ends."""
    head = max(0, width - 1) // 2
    return name if len(name) <= width else f"{name[:head]}…{name[len(name) - max(0, width - 1 - head) :]}"


def verdict(state: State, busy: str, now: float, palette: Palette) -> Text:
    """What the fleet does, in a word and a count; what is under way takes its place, but no question beside a run."""
    run = state.run
    if busy and (busy not in _QUESTIONS or run is None or run.state.final):
        return Text(f"◌ {busy}", style=palette.foreground)
    if not state.hosts:
        return Text("")
    if state.is_silent:  # a run may go on all the same: nobody can say
        return Text("✕ none answers", style=palette.bad)
    if run is not None and not run.state.final and not run.is_starting and run.behind is None:
        training, able = state.hosts_training, state.hosts_able
        glyph, colour = ("●", palette.accent) if training == able and training else ("◐", palette.warning)
        colour = palette.muted if is_out_of_sight(state, now) else colour
        return Text(f"{glyph} training {training}/{able}", style=colour)
    if all(host.state in (HostState.UNKNOWN, HostState.CONNECTING) for host in state.hosts):
        return Text("· not looked yet", style=palette.muted)
    shown = look.CLUSTER[state.cluster_state]
    count = "" if state.cluster_state is ClusterState.DOWN else f" {state.hosts_up}/{len(state.hosts)}"
    return Text(f"{shown.glyph} {state.cluster_state}{count}", style=shown.colour(palette))


def _fleet_places(state: State, busy: str, now: float, palette: Palette) -> list[_Place]:
    name, does = state.cluster or "hetero-tui", verdict(state, busy, now, palette)
    places = [
        _Place(rank=8, width=min(16, len(name)), text=Text(name, style=f"bold {palette.accent}")),
        _Place(rank=0, width=_VERDICT, least=min(_VERDICT, max(_SHORT_VERDICT, does.cell_len)), text=does),
    ]
    said = next(iter(_absent(state)), "")
    note = Text(said, style=palette.warning)
    return [*places, _Place(rank=_NOTE_RANK, width=max(_NOTE, len(said)), least=len(said), text=note)]


def _absent(state: State) -> list[str]:
    """The hosts that do not train, by why: the worst first."""
    unseen = [host.name for host in state.hosts if state.trains_unseen(host)]
    others = [host for host in state.hosts if host.name not in unseen]
    counts = [(sum(host.state is why for host in others), word) for why, word in _ABSENT.items()]
    return [f"{count} {word}" for count, word in (*counts, (len(unseen), "not seen")) if count]


def _grown(place: _Place, words: list[str], spare: int) -> _Place:
    """The note with as many of the groups as have room."""
    said = words[0] if words else ""
    for word in words[1:]:
        if len(f"{said}, {word}") <= place.width + spare:
            said = f"{said}, {word}"
    return replace(place, width=max(place.width, len(said)), text=Text(said, style=place.text.style))


def _run_places(state: State, now: float, palette: Palette, *, is_wide: bool) -> list[_Place]:
    run, script = state.run, script_under_way(state)
    if script is not None and (run is None or run.state.final):
        shown = look.RUN[RunState(script.state)]
        words = f"{shown.glyph} {script.id} {script.state}"
        return [_Place(rank=1, width=len(words), text=Text(words, style=shown.colour(palette)), name=script.id)]
    if run is None:
        return []
    shown = look.RUN[run.state]
    colour = shown.colour(palette)
    if run.state.final:
        words = f"{shown.glyph} {run.run} {ending(run)}"
        return [_Place(rank=1, width=len(words), text=Text(words, style=colour), name=run.run)]
    if run.behind is not None:
        words = f"{shown.glyph} {run.run} {catching_up_words(run, run.behind)}"
        return [_Place(rank=1, width=len(words), text=Text(words, style=colour), name=run.run)]
    if run.is_starting:
        phase = run.phases[-1]
        doing = "stopping" if run.state is RunState.STOPPING else how_it_starts(run)
        short = f"{look.RUN[RunState.STARTING].glyph} {run.run} {doing}"
        words = f"{short}: {phase.name} {fmt.spent(now - state.here(phase.began))}"
        text = Text(words, style=colour)
        width = max(40, len(words))
        return [_Place(rank=1, width=width, least=len(short), text=text, short=short, name=run.run)]
    is_stopping = run.state is RunState.STOPPING
    word = f"{run.run} stopping" if is_stopping else run.run
    total = f"{run.iterations:,}" if run.iterations else "?"
    steps = Text(f"step {run.step:,}/{total}", style=palette.foreground)
    places = [
        _Place(
            rank=1 if is_stopping else _NAME_RANK,
            width=len(word) + 2,
            text=Text(f"{shown.glyph} {word}", style=colour),
            name=run.run,
        ),
        _Place(rank=1, width=2 * len(total) + 6, least=steps.cell_len, text=steps),
    ]
    if run.iterations:
        done = run.step / run.iterations
        bar = use_bar(done, _BAR, palette).append(f"{fmt.share(done):>5}", style=palette.foreground)
        places.append(_Place(rank=_BAR_RANK, width=_BAR + 5, text=bar))
    age = step_age(state, now)
    style = _age_style(state, now, palette)
    left = "" if run.remaining_seconds is None or is_stopping else f"{fmt.duration(run.remaining_seconds)} left"
    is_seen = not is_out_of_sight(state, now)
    is_stuck = makes_no_steps(state, now)
    if age is not None and is_stuck:  # how long it will take is not known while it does not go on, nor how fast it is
        left = f"{'no step' if is_seen else 'not seen'} {fmt.duration(age)}"
    places.append(
        _Place(
            rank=2,
            width=max(_LEFT, len(left)),
            least=max(_SHORT_LEFT, len(left)),
            text=Text(left, style=style),
            right=True,
        )
    )
    speed = "" if run.samples_per_second is None or is_stuck else fmt.throughput(run.samples_per_second)
    if not is_wide:
        speed = speed.replace(" samples", "")
    places.append(
        _Place(
            rank=5, width=_SPEED if is_wide else _SHORT_SPEED, text=Text(speed, style=palette.foreground), right=True
        )
    )
    said = "" if age is None else f"last {'step' if is_seen else 'seen'} {fmt.recent(age)} ago"
    short = said.removeprefix("last ")
    said = said if len(said) <= _AGE else short
    places.append(_Place(rank=7, width=_AGE, least=_SHORT_AGE, text=Text(said, style=style), short=short))
    return places


def ending(run: RunView) -> str:
    """How a run ended: ``stopped at step 155``, ``failed after step 11``, ``finished, 200 steps``."""
    if run.script:
        return run.state.value
    if run.state is RunState.FINISHED:
        return f"finished, {fmt.plural(run.step, 'step')}"
    return f"{run.state} {stands_at(run.state, run.step)}"


def script_under_way(state: State) -> RunSummary | None:
    """The newest script or sweep that goes on, as its machine, which answers, last said: it is listed, not followed."""
    if state.cluster_state is ClusterState.DOWN:
        return None  # it ended with the cluster, also if it has not been asked for since
    away = {host.name for host in state.hosts if host.state in (HostState.UNREACHABLE, HostState.REFUSED)}
    going_on = [run for run in state.runs or () if run.script and not run.state.final and run.host not in away]
    return going_on[-1] if going_on else None


def step_age(state: State, now: float) -> float | None:
    """Seconds since the last step, on the laptop's clock: the head's may differ from it."""
    run = state.run
    if run is None or not run.recent or run.state.final:
        return None
    return age_of(run.recent[-1].time, state, now)


def age_of(time: float, state: State, now: float) -> float:
    """Seconds since a time by the head's clock."""
    return max(0.0, now - state.here(time))


def is_out_of_sight(state: State, now: float) -> bool:
    """Whether this computer hears nothing of the head, as after it slept: steps may be made all the same."""
    head = state.host(state.head) if state.head is not None else None
    return head is not None and (head.state is HostState.UNREACHABLE or is_stale(head, now))


def makes_no_steps(state: State, now: float) -> bool:
    """Whether the last step is so old that its pace says nothing about now."""
    age, run = step_age(state, now), state.run
    return age is not None and run is not None and age >= max(_TOO_OLD, _TOO_OLD * (run.interval or 1.0))


def _age_style(state: State, now: float, palette: Palette) -> str:
    age, run = step_age(state, now), state.run
    if age is None or run is None or age < max(_OLD, _OLD * (run.interval or 1.0)):
        return palette.foreground
    return palette.warning if makes_no_steps(state, now) else palette.muted


def tabs_line(state: State, current: int, width: int, palette: Palette) -> Text:
    """The views by their numbers, the current one marked; a click on one goes there."""
    faults = len(state.run.faults) and state.run.faults[-1].number if state.run is not None else 0
    words = {number: f"{word} {faults}" if number == FAULTS and faults else word for number, word in VIEWS.items()}
    is_narrow = sum(len(word) + 5 for word in words.values()) > width
    line = Text(" ")
    for number, word in words.items():
        click = Style(meta={"@click": f"app.view({number})"})
        if number == current:
            style = Style.parse(f"bold {palette.accent} underline") + click
        else:
            style = Style.parse(palette.muted) + click
        line.append(f"{number}" if is_narrow and number != current else f"{number} {word}", style=style)
        line.append("  " if is_narrow else "   ")
    line.truncate(width)
    return line
