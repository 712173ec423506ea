"""Decides whether an action makes sense now, and if not gives a sentence with the reason. Pure."""

from __future__ import annotations

from hetero_tui.events import ClusterState, HostState
from hetero_tui.intents import ASKING, BUSY, PROBING
from hetero_tui.state import HostView, RunView, State
from hetero_tui.ui.draw.phases import how_it_starts
from hetero_tui.ui.keys import without
from hetero_tui.ui.view import View
from remote_agent.states import RunState

PROBE, UP, TRAIN, STOP, RESUME, DOWN, KEY = "probe", "up", "train", "stop", "resume", "down", "key"
INSTALL, CHECK = "install", "check"

_WAITED_FOR = (ASKING, PROBING)
"""Operations that only look at the machines: what is ordered meanwhile begins by itself after them."""


def refusal(action: str, view: View, run: str | None = None) -> str | None:
    """Why ``action`` can't be done now, or None; ``run`` is the one that is to be resumed, the newest if None."""
    state, busy = view.state, view.busy
    if busy == BUSY:
        return "The inventory is still being read."
    live = state.run is not None and not state.run.state.final
    if action == STOP:
        return None if live else view.no_run
    if not state.hosts:
        return "The inventory has no machines yet."
    if action == KEY:
        return None if offering(state, None) else "No machine offers a new host key."
    if action == DOWN:
        return "The teardown is under way." if busy == "stopping" else None
    if busy and busy not in (_WAITED_FOR if action == TRAIN else (ASKING,)):
        return f"Still {busy}. Wait until that is done."
    if action == UP and state.cluster_state is ClusterState.UP:
        return "The cluster is up on every machine already."
    if action == TRAIN and live and state.run is not None:
        return f"{_still(state.run)}{view.press(stop='to stop it first')}"
    if action == RESUME and live and state.run is not None:
        return _still(state.run)
    if action == RESUME and run is not None and _stands(view, run) is RunState.FINISHED:
        return f"{run} is finished.{view.press(train='to train anew')}"
    return None


def _still(run: RunView) -> str:
    """What a run that goes on does: not every one trains."""
    if run.state is RunState.STOPPING:
        return f"{run.run} is stopping."
    return f"{run.run} is {how_it_starts(run) if run.is_starting else 'still training'}."


def _stands(view: View, run: str) -> RunState | None:
    """Where a run stands, as far as that is known: it is on the screen, or in the list."""
    if view.run is not None and view.run.run == run:
        return view.run.state
    return next((RunState(known.state) for known in view.state.listed_runs or () if known.id == run), None)


def drain_refusal(view: View, host: str | None) -> str | None:
    """Why ``host`` can't leave the run, or None."""
    run = view.state.run
    if run is None or run.state.final:
        return "No run is going on, so there is nothing to leave."
    if run.behind is not None:
        return f"{run.run} is still being read; try again in a moment."
    if host is None:
        return "There is no machine to drain."
    mine = [worker for worker in run.workers if worker.host == host]
    if not mine:
        return f"{host} does not take part in {run.run}."
    if all(worker.drained for worker in mine):
        return f"{host} is drained already."
    if {worker.host for worker in run.workers if worker.alive and worker.samples} == {host}:
        return f"{host} is the last machine that trains.{view.press(stop='to stop the run')}"
    return None


def back_refusal(view: View, host: str | None) -> str | None:
    """Why ``host`` can't be brought back into the run, or None."""
    state, shown = view.state, view.run
    run = state.run
    if run is None or run.state.final:
        return view.no_run
    if shown is not run and shown is not None:
        return f"{shown.run} is over. The run under way is {run.run}."
    if run.behind is not None:
        return f"{run.run} is still being read; try again in a moment."
    known = state.host(host) if host is not None else None
    if known is None:
        return "There is no machine to bring back."
    if known.state in (HostState.TRAINING, HostState.SLOW) and not without(run, known.name):
        return f"{known.name} takes part already."
    if known.state is HostState.RETURNING:
        return f"{known.name} is coming back already."
    if known.state is HostState.UNREACHABLE:
        return f"{known.name} is unreachable; it is tried again by itself."
    return None


def offering(state: State, marked: str | None) -> HostView | None:
    """The host whose offered key the question is about: the marked one, or else the first that offers one."""
    hosts = [host for host in state.hosts if host.offered_key is not None]
    return next((host for host in hosts if host.name == marked), hosts[0] if hosts else None)
