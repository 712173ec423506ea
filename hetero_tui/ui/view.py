"""What a screen is drawn from: the state, and what the screens add to it (the time, the colours, their own notes)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import Protocol, runtime_checkable

from hetero_tui.state import LogLine, State
from hetero_tui.ui.keys import QUIT, Key
from hetero_tui.ui.palette import Palette


@dataclass(frozen=True, kw_only=True)
class View:
    """One frame's input. ``notes`` are log lines of the screens themselves: what a key press led to."""

    state: State
    busy: str
    now: float
    zone: tzinfo | None
    palette: Palette
    inventory_path: str
    notes: tuple[LogLine, ...] = ()
    quit_key: Key = QUIT
    more_keys: tuple[Key, ...] = ()

    @property
    def log(self) -> tuple[LogLine, ...]:
        """The event log with the notes in their places, newest first."""
        if not self.notes:
            return self.state.log[::-1]
        return tuple(sorted((*self.state.log, *self.notes), key=lambda line: line.time))[::-1]


@runtime_checkable
class Drawn(Protocol):
    """A screen that is drawn from a view, again with every frame."""

    def draw(self, view: View) -> None:
        """Draw what changed."""
