"""Whether an action makes sense now; if not, the sentence that says why. Pure: nothing is refused in silence."""

from __future__ import annotations

from hetero_tui.events import ClusterState, RunState
from hetero_tui.state import HostView, State
from hetero_tui.ui.opening import BUSY

PROBE, UP, TRAIN, STOP, RESUME, DOWN, KEY = "probe", "up", "train", "stop", "resume", "down", "key"


def refusal(action: str, state: State, busy: str) -> str | None:
    """Why ``action`` can't be done now, or None."""
    if busy == BUSY:
        return "The inventory is still being read."
    live = state.run is not None and not state.run.state.final
    if action == STOP:
        return None if live else "No run is going on. Press t to train."
    if not state.hosts:
        return "The inventory has no machines yet."
    if action == KEY:
        return None if offering(state, None) else "No machine offers a new host key."
    if action == DOWN:
        return "The teardown is under way." if busy == "stopping" else None
    if busy:
        return f"Still {busy}. Wait until that is done."
    if action == UP and state.cluster_state is ClusterState.UP:
        return f"The cluster is up on all {len(state.hosts)} machines already."
    if action == TRAIN and live and state.run is not None:
        return f"{state.run.run} is still training. Press s to stop it first."
    if action == RESUME and state.run is not None:
        if live:
            return f"{state.run.run} is still training."
        if state.run.state is RunState.FINISHED:
            return f"{state.run.run} is finished. Press t to train anew."
    return None


def offering(state: State, marked: str | None) -> HostView | None:
    """The host whose offered key the question is about: the marked one, or else the first that offers one."""
    hosts = [host for host in state.hosts if host.offered_key is not None]
    return next((host for host in hosts if host.name == marked), hosts[0] if hosts else None)
