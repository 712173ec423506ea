"""Defines what a screen is drawn from: the state, and what screens add (the time, the colours, their own notes)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import Protocol, runtime_checkable

from hetero_tui.state import LogLine, RunView, State
from hetero_tui.ui.keys import FLEET, KEYS, QUIT, Key
from hetero_tui.ui.palette import Palette


@dataclass(frozen=True, kw_only=True)
class View:
    """One frame's input.

    Attributes:
        busy: the operation under way, or "".
        now: seconds since the epoch.
        zone: the time zone of what is shown.
        inventory_path: for people.
        mistakes: of the inventory's file, where it can't be used.
        notes: log lines of the screens themselves: what a key press led to.
        keys: that this app allows, with the user's own codes.
        quit_key: what leaving means.
        more_keys: beside the table's.
        readonly: no key changes anything on the machines.
        number: of the view that is shown.
        opened: a run of the past, which is shown in place of the session's; None: that one is.
    """

    state: State
    busy: str
    now: float
    zone: tzinfo | None
    palette: Palette
    inventory_path: str
    mistakes: tuple[str, ...] = ()
    notes: tuple[LogLine, ...] = ()
    keys: tuple[Key, ...] = KEYS
    quit_key: Key = QUIT
    more_keys: tuple[Key, ...] = ()
    readonly: bool = False
    number: int = FLEET
    opened: RunView | None = None

    @property
    def run(self) -> RunView | None:
        """The run that the view shows: the opened one, or else the session's, which is the fleet's at any time."""
        own, opened = self.state.run, self.opened
        if opened is None or self.number == FLEET or (own is not None and own.run == opened.run):
            return own
        return opened

    def key_of(self, action: str) -> str:
        """The key of an action as it is printed; empty where the app does not allow it."""
        return next((key.key for key in self.keys if key.action == action), "")

    def press(self, **actions: str) -> str:
        """The end of a sentence that says which keys help: of ``train="to train"`` it is `` Press t to train.``."""
        said = [f"{self.key_of(action)} {words}" for action, words in actions.items() if self.key_of(action)]
        return f" Press {', or '.join(said)}." if said else ""

    @property
    def log(self) -> tuple[LogLine, ...]:
        """The event log in the order of time with the notes in their places, newest first."""
        return tuple(sorted((*self.state.log, *self.notes), key=lambda line: line.time))[::-1]


@runtime_checkable
class Drawn(Protocol):
    """A screen that is drawn from a view, again with every frame."""

    def draw(self, view: View) -> None:
        """Draw what changed."""
