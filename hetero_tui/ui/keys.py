"""The keys, once: bindings, the line at the bottom, the help screen and the command palette are made of this table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hetero_tui.events import ClusterState, HostState
from hetero_tui.state import RunView, State
from remote_agent.states import RunState

if TYPE_CHECKING:
    from remote_agent.protocol import RunSummary


CHARACTERS = {
    "question_mark": "?",
    "slash": "/",
    "colon": ":",
    "exclamation_mark": "!",
    "greater_than_sign": ">",
    "less_than_sign": "<",
}
"""The characters of our keys by Textual's names for them."""

FLEET, RUN, PLAN, FAULTS, RUNS, LOGS = range(1, 7)
VIEWS = {FLEET: "Fleet", RUN: "Run", PLAN: "Plan", FAULTS: "Faults", RUNS: "Runs", LOGS: "Logs"}
"""The views by their numbers, which are their keys; ``Run`` is ``RunPane`` in ``ui/views/run.py``, the others alike."""

EVERYWHERE = frozenset(VIEWS)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key and what it does.

    Attributes:
        code: as Textual names it.
        action: that it carries out.
        help: a sentence.
        said: for the line at the bottom; empty: the action's name.
        changes: whether it changes something on the machines, which ``--readonly`` refuses.
        views: where it works.
        asks: the views in which the machines are asked for something, which a recording has none of.
    """

    code: str
    action: str
    help: str
    said: str = ""
    changes: bool = False
    views: frozenset[int] = EVERYWHERE
    asks: frozenset[int] = frozenset()

    @property
    def key(self) -> str:
        """As it is printed."""
        return CHARACTERS.get(self.code, self.code)

    @property
    def word(self) -> str:
        """For the line at the bottom."""
        return self.said or self.action.replace("_", " ")


def _in(*views: int) -> frozenset[int]:
    return frozenset(views)


KEYS = (
    Key(code="question_mark", action="help", help="What the keys and signs mean"),
    Key(code="p", action="probe", help="Look at every machine again", asks=EVERYWHERE),
    Key(code="u", action="up", help="Start the cluster on every fit machine", changes=True),
    Key(code="t", action="train", help="Train a model on the machines that are ready", changes=True),
    Key(code="s", action="stop", help="Stop the run after its step, with a checkpoint; asks first", changes=True),
    Key(code="r", action="resume", help="Let a run that ended too early go on", changes=True),
    Key(
        code="slash",
        action="filter",
        help="Show only the lines that match a text",
        views=_in(FLEET, PLAN, FAULTS, RUNS, LOGS),
    ),
    Key(code="o", action="sort", help="Sort by the next column", views=_in(FLEET, FAULTS, RUNS)),
    Key(code="y", action="copy", help="Copy the marked line, or the lines that are shown"),
    Key(code="colon", action="command_palette", said="commands", help="Views, machines, runs, commands"),
    Key(code="D", action="teardown", help="Stop everything everywhere; asks first", changes=True),
    Key(
        code="enter",
        action="open",
        help="All that is known of the marked machine; or look at the marked run",
        views=_in(FLEET, RUNS),
        asks=_in(RUNS),
    ),
    Key(
        code="k",
        action="key",
        said="accept key",
        help="Look at the host key that a new machine offers",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        code="b",
        action="bring_back",
        help="Bring the marked machine back into the run now, drained or lost",
        changes=True,
        views=_in(FLEET, FAULTS),
    ),
    Key(
        code="d",
        action="drain",
        help="Have the marked machine leave the run after its step, with nothing lost",
        changes=True,
        views=_in(FLEET),
    ),
    Key(code="exclamation_mark", action="shell", help="A shell on the marked machine", changes=True, views=_in(FLEET)),
    Key(
        code="c",
        action="check",
        help="Look for all that may keep the machines from training well, and how to mend it",
        views=_in(FLEET),
        asks=_in(FLEET),
    ),
    Key(
        code="i",
        action="install",
        help="Install what is missing on the machines; asks first",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        code="a",
        action="add",
        help="Add a machine to the inventory",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        code="e",
        action="edit",
        help="Change the marked machine in the inventory, or open that in your editor",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        code="R",
        action="remove",
        help="Take the marked machine out of the inventory; asks first",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        code="l",
        action="logs",
        help="The logs of the marked machine or run",
        views=_in(FLEET, FAULTS, RUNS),
        asks=_in(FLEET, FAULTS, RUNS),
    ),
    Key(code="g", action="scale", said="log scale", help="The loss on a logarithmic scale, or not", views=_in(RUN)),
    Key(code="m", action="smooth", help="The loss smoothed, or not", views=_in(RUN)),
    Key(code="z", action="zoom", help="All steps, the last tenth of them, the last hundred", views=_in(RUN)),
    Key(code="space", action="mark", help="Mark a run to compare it", views=_in(RUNS), asks=_in(RUNS)),
    Key(code="c", action="compare", help="Compare the marked runs", views=_in(RUNS), asks=_in(RUNS)),
    Key(code="f", action="follow", said="pause", help="Stop following the log, or follow it again", views=_in(LOGS)),
    Key(
        code="n",
        action="source",
        said="next log",
        help="The next process: coordinator, workers, Ray, all",
        views=_in(LOGS),
    ),
    Key(code="w", action="save", help="Write the lines that are shown to a file", views=_in(LOGS)),
)

QUIT = Key(code="q", action="detach", help="Leave; what runs on the machines goes on (ctrl+q, ctrl+c too)")
QUIT_FOR_GOOD = Key(
    code="q", action="detach", said="quit", help="Leave; the demo's machines go away (ctrl+q, ctrl+c too)"
)
CHAOS = Key(
    code="x",
    action="chaos",
    said="break machines",
    help="The demo's own: break a machine every few seconds, or no more of them",
    changes=True,
)

ADD = Key(code="a", action="add", help="Add a machine in a form", changes=True)
EDIT = Key(code="e", action="edit", help="Open the inventory in your editor ($EDITOR)", changes=True)
DEMO = Key(code="d", action="demo", help="See it work on this computer, with nothing to set up", changes=True)

IN_FILTER = (("enter", "keep", ""), ("esc", "show all", ""))
"""The keys while the text of a filter is typed: letters are a part of it."""

IN_PALETTE = (("enter", "choose", ""), ("up down", "next", ""), ("esc", "close", ""))
"""The keys while the command palette is open."""

RESUMABLE = (RunState.LOST, RunState.FAILED, RunState.STOPPED)
"""Where a run stands that can go on from its newest checkpoint."""


def is_resumable(run: RunView | RunSummary) -> bool:
    """Whether a run that has ended can go on: before its first checkpoint there is nothing to go on from."""
    return run.state in RESUMABLE and run.checkpoint not in ("", None)


def without(run: RunView, host: str) -> int:
    """How many devices of a host a run does without: lost, paused or drained, and not on their way back."""
    mine = (worker for worker in run.workers if worker.host == host)
    return sum(not worker.alive and not worker.is_coming for worker in mine)


ASKING = frozenset(
    {"help", "train", "stop", "teardown", "filter", "command_palette", "add", "edit", "remove", "check", "install"}
)
"""Actions after which what is typed is for what they opened: they are carried out before the next key is looked at."""


def allowed(keys: Sequence[Key], *, readonly: bool, recorded: bool = False) -> tuple[Key, ...]:
    """What is left of the keys in an app that only shows, and of their views over a recording, which is asked nothing.

    All that names keys is made of these: the line at the bottom, the help, the palette, and sentences.
    """
    kept = [key for key in keys if not (readonly and key.changes)]
    if recorded:
        kept = [replace(key, views=key.views - key.asks) for key in kept]
    return tuple(key for key in kept if key.views)


def shown_keys(
    state: State,
    busy: str,
    last: Key = QUIT,
    more: Sequence[Key] = (),
    *,
    view: int = FLEET,
    keys: Sequence[Key] = KEYS,
    run: RunView | RunSummary | None = None,
) -> tuple[tuple[str, str, str], ...]:
    """The keys that make sense now as (key, word, action), the most wanted first; ``last`` stands at the right.

    ``more`` are keys beside the table's; they come right after the first. ``run`` is the one that the view shows, or
    that is marked in the list of runs; elsewhere the session's if None.
    """
    by_action = {key.action: key for key in keys}
    about = run if run is not None or view == RUNS else state.run
    wanted = ["help", *_wanted_in(view, state, about), *_wanted_anywhere(state, busy, about)]
    chosen = [by_action[action] for action in dict.fromkeys(wanted) if action in by_action]
    chosen = [key for key in chosen if view in key.views]
    chosen[1:1] = more
    return tuple((key.key, key.word, key.action) for key in (*chosen, last))


def _wanted_in(view: int, state: State, shown: RunView | RunSummary | None) -> list[str]:
    """The actions of a view, those that something waits for first."""
    if not state.hosts:
        return []
    gone, partly = (HostState.DRAINED, HostState.PAUSED, HostState.BENCHED), (HostState.TRAINING, HostState.SLOW)
    run = state.run
    back = any(
        host.state in gone or (host.state in partly and run is not None and without(run, host.name) > 0)
        for host in state.hosts
    )
    if view == FLEET:
        offered = any(host.offered_key is not None for host in state.hosts)
        unfit = any(host.state is HostState.UNFIT for host in state.hosts)
        return (["key"] if offered else []) + (["bring_back"] if back else []) + (["install"] if unfit else [])
    if view == FAULTS:
        return (["bring_back"] if back else []) + ["logs"]
    has_curve = isinstance(shown, RunView) and bool(shown.losses) and not shown.is_starting
    return {
        RUN: ["smooth", "scale", "zoom"] if has_curve else [],
        RUNS: ["open", "mark", "compare", "logs"],
        LOGS: ["follow", "source", "filter", "save"],
    }.get(view, [])


def _wanted_anywhere(state: State, busy: str, shown: RunView | RunSummary | None) -> list[str]:
    if not state.hosts:
        return []
    live = state.run is not None and not state.run.state.final
    up = state.cluster_state in (ClusterState.UP, ClusterState.DEGRADED)
    wanted = []
    if live:
        wanted.append("stop")
    elif not busy:
        if shown is not None and is_resumable(shown):
            wanted.append("resume")
        wanted.extend(["train"] if up else ["up", "train"])
    wanted.append("open")
    if not busy and not live:
        wanted.append("probe")
    if live:
        wanted.append("drain")
    wanted.extend(["filter", "command_palette", "teardown", "logs", "shell", "sort", "copy"])
    wanted.extend(["check", "add", "edit", "install", "remove"])
    return wanted
