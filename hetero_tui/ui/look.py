"""Defines the look of each state: a glyph, a word and a colour, so that no meaning depends on one of them alone."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_tui.events import ClusterState, HostState, Level
from hetero_tui.ui.palette import Palette
from remote_agent.states import RunState


@dataclass(frozen=True)
class Look:
    """A glyph of one cell, and the colour (a name of :class:`Palette`) for it and its word."""

    glyph: str
    role: str

    def colour(self, palette: Palette) -> str:
        """The colour in ``palette``."""
        colour: str = getattr(palette, self.role)
        return colour


HOST: dict[HostState, Look] = {
    HostState.UNKNOWN: Look("·", "muted"),
    HostState.CONNECTING: Look("◌", "foreground"),
    HostState.IDLE: Look("◇", "muted"),
    HostState.READY: Look("◇", "foreground"),
    HostState.UNFIT: Look("▲", "warning"),
    HostState.INSTALLING: Look("◔", "foreground"),
    HostState.STARTING: Look("◔", "foreground"),
    HostState.RESTARTING: Look("◔", "warning"),
    HostState.UP: Look("◉", "accent"),
    HostState.TRAINING: Look("●", "accent"),
    HostState.SLOW: Look("◐", "warning"),
    HostState.BENCHED: Look("◑", "muted"),
    HostState.PAUSED: Look("◌", "warning"),
    HostState.DRAINED: Look("□", "muted"),
    HostState.RETURNING: Look("◔", "warning"),
    HostState.STOPPING: Look("◔", "foreground"),
    HostState.UNREACHABLE: Look("○", "bad"),
    HostState.REFUSED: Look("✕", "bad"),
    HostState.FAILED: Look("✕", "bad"),
}

CLUSTER: dict[ClusterState, Look] = {
    ClusterState.DOWN: Look("○", "muted"),
    ClusterState.STARTING: Look("◔", "foreground"),
    ClusterState.UP: Look("●", "accent"),
    ClusterState.DEGRADED: Look("◐", "warning"),
    ClusterState.STOPPING: Look("◔", "foreground"),
}

RUN: dict[RunState, Look] = {
    RunState.STARTING: Look("◔", "foreground"),
    RunState.RUNNING: Look("●", "accent"),
    RunState.STOPPING: Look("◔", "foreground"),
    RunState.FINISHED: Look("✔", "accent"),
    RunState.STOPPED: Look("■", "foreground"),
    RunState.FAILED: Look("✕", "bad"),
    RunState.LOST: Look("✕", "bad"),
}

LEVEL: dict[Level, Look] = {
    Level.INFO: Look("·", "muted"),
    Level.GOOD: Look("✔", "accent"),
    Level.WARNING: Look("▲", "warning"),
    Level.BAD: Look("✕", "bad"),
}
