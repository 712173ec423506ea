"""Defines what a screen is drawn from: the state, and what screens add (the time, the colours, their own notes)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import ClassVar, Protocol, runtime_checkable

from hetero_tui.intents import RESUMING, TRAINING
from hetero_tui.state import LogLine, RunView, State
from hetero_tui.ui.header import script_under_way
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
        awaits_run: the app was told on its start to train, and has not begun yet.
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
    awaits_run: bool = False
    opened: RunView | None = None

    @property
    def run(self) -> RunView | None:
        """The run that the view shows: the opened one, or else the session's, which is the fleet's at any time."""
        own, opened = self.state.run, self.opened
        if opened is None or self.number == FLEET or (own is not None and own.run == opened.run):
            return own
        return opened

    @property
    def no_run(self) -> str:
        """What is said where no run is shown: that one is about to start, or how to start one."""
        if self.awaits_run or self.busy in (TRAINING, RESUMING):
            return "A run is about to start."
        script = script_under_way(self.state)
        if script is not None:
            return f"{script.id} is {script.state} on these machines: 5 shows it, 6 what it prints."
        said = "No run yet." if self.state.runs == () else "No run is going on."
        return f"{said}{self.press(train='to train')}"

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
class Hinting(Protocol):
    """A screen with keys of its own, which the line at the bottom names as long as it is open."""

    hints: ClassVar[tuple[tuple[str, str, str], ...]]


@runtime_checkable
class Drawn(Protocol):
    """A screen that is drawn from a view, again with every frame."""

    def draw(self, view: View) -> None:
        """Draw what changed."""
