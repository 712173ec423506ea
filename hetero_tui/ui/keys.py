"""The keys, once: bindings, the line at the bottom, the help screen and the command palette are made of this table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hetero_tui.events import ClusterState, HostState
from hetero_tui.state import RunView, State
from remote_agent.states import RunState

FLEET, RUN, PLAN, FAULTS, RUNS, LOGS = range(1, 7)
VIEWS = {FLEET: "Fleet", RUN: "Run", PLAN: "Plan", FAULTS: "Faults", RUNS: "Runs", LOGS: "Logs"}
"""The views by their numbers, which are their keys; ``Run`` is ``RunPane`` in ``ui/views/run.py``, the others alike."""

EVERYWHERE = frozenset(VIEWS)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key and what it does.

    Attributes:
        key: as it is printed.
        code: as Textual names it.
        action: that it carries out, and its name in the settings file.
        word: for the line at the bottom.
        help: a sentence.
        changes: whether it changes something on the machines, which ``--readonly`` refuses.
        views: where it works.
    """

    key: str
    code: str
    action: str
    word: str
    help: str
    changes: bool = False
    views: frozenset[int] = EVERYWHERE


def _in(*views: int) -> frozenset[int]:
    return frozenset(views)


KEYS = (
    Key(key="?", code="question_mark", action="help", word="help", help="What the keys and signs mean"),
    Key(key="p", code="p", action="probe", word="probe", help="Look at every machine again"),
    Key(key="u", code="u", action="up", word="up", help="Start the cluster on every fit machine", changes=True),
    Key(key="t", code="t", action="train", word="train", help="Train a model on all of them", changes=True),
    Key(
        key="s",
        code="s",
        action="stop",
        word="stop",
        help="Stop the run after its step, with a checkpoint; asks first",
        changes=True,
    ),
    Key(key="r", code="r", action="resume", word="resume", help="Let a run that ended too early go on", changes=True),
    Key(key="/", code="slash", action="filter", word="filter", help="Show only the lines that match a text"),
    Key(key="o", code="o", action="sort", word="sort", help="Sort by the next column"),
    Key(key="y", code="y", action="copy", word="copy", help="Copy the marked line, or the lines that are shown"),
    Key(key=":", code="colon", action="command_palette", word="commands", help="Views, machines, runs, commands"),
    Key(
        key="D",
        code="D",
        action="teardown",
        word="teardown",
        help="Stop everything everywhere; asks first",
        changes=True,
    ),
    Key(
        key="enter",
        code="enter",
        action="open",
        word="open",
        help="All that is known of the marked machine; or look at the marked run",
        views=_in(FLEET, RUNS),
    ),
    Key(
        key="k",
        code="k",
        action="key",
        word="accept key",
        help="Look at the host key that a new machine offers",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        key="b",
        code="b",
        action="bring_back",
        word="bring back",
        help="Bring the marked machine back into the run now, drained or lost",
        changes=True,
        views=_in(FLEET, FAULTS),
    ),
    Key(
        key="d",
        code="d",
        action="drain",
        word="drain",
        help="Have the marked machine leave the run after its step, with nothing lost",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        key="!",
        code="exclamation_mark",
        action="shell",
        word="shell",
        help="A shell on the marked machine",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        key="c",
        code="c",
        action="check",
        word="check",
        help="Look for all that may keep the machines from training well, and how to mend it",
        views=_in(FLEET),
    ),
    Key(
        key="i",
        code="i",
        action="install",
        word="install",
        help="Install what is missing on the machines; asks first",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        key="a",
        code="a",
        action="add",
        word="add",
        help="Add a machine, or those of ~/.ssh/config, to the inventory",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        key="e",
        code="e",
        action="edit",
        word="edit",
        help="Change the marked machine in the inventory, or open that in your editor",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        key="R",
        code="R",
        action="remove",
        word="remove",
        help="Take the marked machine out of the inventory; asks first",
        changes=True,
        views=_in(FLEET),
    ),
    Key(
        key="l",
        code="l",
        action="logs",
        word="logs",
        help="The logs of the marked machine or run",
        views=_in(FLEET, FAULTS, RUNS),
    ),
    Key(
        key="g",
        code="g",
        action="scale",
        word="log scale",
        help="The loss on a logarithmic scale, or not",
        views=_in(RUN),
    ),
    Key(key="m", code="m", action="smooth", word="smooth", help="The loss smoothed, or not", views=_in(RUN)),
    Key(
        key="z",
        code="z",
        action="zoom",
        word="zoom",
        help="All steps, the last tenth of them, the last hundred",
        views=_in(RUN),
    ),
    Key(key="space", code="space", action="mark", word="mark", help="Mark a run to compare it", views=_in(RUNS)),
    Key(key="c", code="c", action="compare", word="compare", help="Compare the marked runs", views=_in(RUNS)),
    Key(
        key="f",
        code="f",
        action="follow",
        word="pause",
        help="Stop following the log, or follow it again",
        views=_in(LOGS),
    ),
    Key(
        key="n",
        code="n",
        action="source",
        word="next log",
        help="The next process: coordinator, workers, Ray, all",
        views=_in(LOGS),
    ),
    Key(
        key="w", code="w", action="save", word="save", help="Write the lines that are shown to a file", views=_in(LOGS)
    ),
)

QUIT = Key(
    key="q",
    code="q",
    action="detach",
    word="detach",
    help="Leave; what runs on the machines goes on (ctrl+q, ctrl+c too)",
)
QUIT_FOR_GOOD = Key(
    key="q", code="q", action="detach", word="quit", help="Leave; the demo's machines go away (ctrl+q, ctrl+c too)"
)
CHAOS = Key(key="x", code="x", action="chaos", word="chaos", help="The demo's own: break a machine every few seconds")

ADD = Key(key="a", code="a", action="add", word="add", help="Add a machine in a form, or those of ~/.ssh/config")
EDIT = Key(key="e", code="e", action="edit", word="edit", help="Open the inventory in your editor ($EDITOR)")
DEMO = Key(key="d", code="d", action="demo", word="demo", help="See it work on this computer, with nothing to set up")

RESUMABLE = (RunState.LOST, RunState.FAILED, RunState.STOPPED)
"""Where a run stands that can go on from its newest checkpoint."""


def is_resumable(run: RunView) -> bool:
    """Whether a run that has ended can go on: before its first checkpoint there is nothing to go on from."""
    return run.state in RESUMABLE and bool(run.checkpoint)


_NAMES = {
    "exclamation_mark": "!",
    "question_mark": "?",
    "slash": "/",
    "colon": ":",
    "semicolon": ";",
    "comma": ",",
    "full_stop": ".",
    "minus": "-",
    "plus": "+",
}


ASKING = frozenset(
    {"help", "train", "stop", "teardown", "filter", "command_palette", "add", "edit", "remove", "check", "install"}
)
"""Actions after which what is typed is for what they opened: they are carried out before the next key is looked at."""


def remapped(keys: Sequence[Key], codes: Mapping[str, str]) -> tuple[Key, ...]:
    """The keys with the codes that the settings file gives for some actions."""
    return tuple(
        replace(key, code=codes[key.action], key=_NAMES.get(codes[key.action], codes[key.action]))
        if key.action in codes
        else key
        for key in keys
    )


def clashes(keys: Sequence[Key]) -> list[str]:
    """A sentence for each pair of keys that would do two things in one view."""
    said = []
    for index, key in enumerate(keys):
        said += [
            f"{key.code} is both {other.action} and {key.action}"
            for other in keys[:index]
            if key.code == other.code and key.views & other.views
        ]
        if key.code in {str(view) for view in VIEWS}:
            said.append(f"{key.code} is the key of the view {VIEWS[int(key.code)]}")
    return said


def shown_keys(
    state: State,
    busy: str,
    last: Key = QUIT,
    more: Sequence[Key] = (),
    *,
    view: int = FLEET,
    keys: Sequence[Key] = KEYS,
    readonly: bool = False,
) -> tuple[tuple[str, str, str], ...]:
    """The keys that make sense now as (key, word, action), the most wanted first; ``last`` stands at the right.

    ``more`` are keys beside the table's; they come right after the first.
    """
    by_action = {key.action: key for key in keys}
    wanted = ["help", *_wanted_in(view, state), *_wanted_anywhere(state, busy)]
    chosen = [by_action[action] for action in dict.fromkeys(wanted) if view in by_action[action].views]
    chosen = [key for key in chosen if not (readonly and key.changes)]
    chosen[1:1] = more
    return tuple((key.key, key.word, key.action) for key in (*chosen, last))


def _wanted_in(view: int, state: State) -> list[str]:
    """The actions of a view, those that something waits for first."""
    if not state.hosts:
        return []
    gone = (HostState.DRAINED, HostState.PAUSED, HostState.BENCHED)
    back = any(host.state in gone for host in state.hosts)
    if view == FLEET:
        offered = any(host.offered_key is not None for host in state.hosts)
        unfit = any(host.state is HostState.UNFIT for host in state.hosts)
        return (["key"] if offered else []) + (["bring_back"] if back else []) + (["install"] if unfit else [])
    if view == FAULTS:
        return (["bring_back"] if back else []) + ["logs"]
    return {
        RUN: ["smooth", "scale", "zoom"],
        RUNS: ["open", "mark", "compare", "resume", "logs"],
        LOGS: ["follow", "source", "filter", "save"],
    }.get(view, [])


def _wanted_anywhere(state: State, busy: str) -> list[str]:
    if not state.hosts:
        return []
    live = state.run is not None and not state.run.state.final
    up = state.cluster_state in (ClusterState.UP, ClusterState.DEGRADED)
    wanted = []
    if live:
        wanted.append("stop")
    elif not busy:
        if state.run is not None and is_resumable(state.run):
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
