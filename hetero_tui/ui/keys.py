"""The keys, once: bindings, the line at the bottom, the help screen and the command palette are made of this table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_tui.events import ClusterState, RunState
from hetero_tui.state import State


@dataclass(frozen=True, kw_only=True)
class Key:
    """``key`` as it is printed, ``code`` as Textual names it; ``word`` for the key line, ``help`` in a sentence."""

    key: str
    code: str
    action: str
    word: str
    help: str


KEYS = (
    Key(key="?", code="question_mark", action="help", word="help", help="What the keys and signs mean"),
    Key(key="enter", code="enter", action="host", word="host", help="All that is known of the marked machine"),
    Key(key="p", code="p", action="probe", word="probe", help="Look at every machine again"),
    Key(key="u", code="u", action="up", word="up", help="Start the cluster on every fit machine"),
    Key(key="t", code="t", action="train", word="train", help="Train a model on all of them"),
    Key(key="s", code="s", action="stop", word="stop", help="Stop the run after its step, with a checkpoint"),
    Key(key="r", code="r", action="resume", word="resume", help="Let a run that ended too early go on"),
    Key(key="k", code="k", action="key", word="accept key", help="Look at the host key that a new machine offers"),
    Key(key="/", code="slash", action="filter", word="filter", help="Show only the machines that match a text"),
    Key(key=":", code="colon", action="command_palette", word="commands", help="All commands by name (ctrl+p too)"),
    Key(key="D", code="D", action="teardown", word="teardown", help="Stop everything everywhere; asks first"),
)

QUIT = Key(key="q", code="q", action="detach", word="detach", help="Leave; what runs on the machines goes on")
QUIT_FOR_GOOD = Key(key="q", code="q", action="detach", word="quit", help="Leave; the demo's machines go away")
CHAOS = Key(key="x", code="x", action="chaos", word="chaos", help="The demo's own: break a machine every few seconds")

RESUMABLE = (RunState.LOST, RunState.FAILED, RunState.STOPPED)
"""Where a run stands that can go on from its newest checkpoint."""


def shown_keys(state: State, busy: str, last: Key = QUIT, more: Sequence[Key] = ()) -> tuple[tuple[str, str, str], ...]:
    """The keys that make sense now as (key, word, action), the most wanted first; ``last`` stands at the right.

    ``more`` are keys beside the table's; they come right after the first, while a run is on.
    """
    live = state.run is not None and not state.run.state.final
    offered = any(host.offered_key is not None for host in state.hosts)
    up = state.cluster_state in (ClusterState.UP, ClusterState.DEGRADED)
    wanted = ["help"]
    if offered:
        wanted.append("key")
    if state.hosts:
        wanted.append("host")
        if live:
            wanted.append("stop")
        elif not busy:
            if state.run is not None and state.run.state in RESUMABLE:
                wanted.append("resume")
            wanted.extend(["train"] if up else ["up", "train"])
        if not busy and not live:
            wanted.append("probe")
        wanted.extend(["filter", "command_palette", "teardown"])
    by_action = {key.action: key for key in KEYS}
    chosen = [by_action[action] for action in wanted]
    if live:
        chosen[1:1] = more
    return tuple((key.key, key.word, key.action) for key in (*chosen, last))
