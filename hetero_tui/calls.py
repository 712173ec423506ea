"""Decides when to call the user back to the terminal: a run ended, or something needs the user. Pure."""

from __future__ import annotations

from hetero_tui.events import HostState, Level
from hetero_tui.state import State
from remote_agent.states import RunState, stands_at


def call_for(before: State, after: State) -> tuple[Level, str] | None:
    """What has happened between two states that a user who looks elsewhere should know, in a sentence; None: nothing.

    A run whose end was not seen, such as one that was over when the app was opened, is no news.
    """
    was, run = before.run, after.run
    if run is not None and was is not None and was.run == run.run and run.state.final and not was.state.final:
        cause = f": {run.detail}" if run.detail else ""
        level = Level.BAD if run.state in (RunState.FAILED, RunState.LOST) else Level.GOOD
        return level, f"{run.run} {run.state} {stands_at(run.state, run.step)}{cause}"
    for host in after.hosts:
        if host.state is not HostState.REFUSED:
            continue
        known = before.host(host.name)
        was_well = known is not None and known.last_seen is not None and known.state is not HostState.REFUSED
        if was_well:
            return Level.BAD, f"{host.name} needs a hand: {host.detail}"
    return None
