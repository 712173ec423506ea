"""The terminal app: keys become intents, and the state is drawn at most twice a second.

Contents: what is drawn (:meth:`HeteroApp.view`) and when (:meth:`HeteroApp.redraw`), how one leaves, and what happens
on start and when the inventory's file changes. What the keys do is in
:mod:`hetero_tui.ui.view_actions`, :mod:`hetero_tui.ui.actions` and :mod:`hetero_tui.ui.machine_actions`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import tzinfo
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.screen import Screen
from textual.theme import Theme

from hetero_tui.errors import HeteroTuiError, InventoryError
from hetero_tui.events import Level
from hetero_tui.intents import BUSY, Opening, call_for, half_way
from hetero_tui.text import plain
from hetero_tui.ui.keys import ADD, ASKING, CHAOS, DEMO, EDIT, KEYS, QUIT, VIEWS, Key, allowed
from hetero_tui.ui.machine_actions import MachineActions
from hetero_tui.ui.operations import Operations
from hetero_tui.ui.palette import PALETTES, Palette, preferred
from hetero_tui.ui.preferences import Preferences
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.sentences import farewell
from hetero_tui.ui.terminal import enduring
from hetero_tui.ui.view import Drawn, View


def theme_of(palette: Palette) -> Theme:
    """The theme; our further colours become variables of the style sheets."""

    def css(colour: str) -> str:
        return colour if colour.startswith("#") else f"ansi_{colour}"

    return Theme(
        name=palette.name,
        dark=palette.dark,
        primary=css(palette.accent),
        secondary=css(palette.push),
        accent=css(palette.accent),
        success=css(palette.accent),
        warning=css(palette.warning),
        error=css(palette.bad),
        foreground=css(palette.foreground),
        background=css(palette.background),
        surface=css(palette.surface),
        panel=css(palette.raised),
        variables={
            "line": css(palette.line),
            "raised": css(palette.raised),
            "muted": css(palette.muted),
            "bad": css(palette.bad),
        },
    )


_PASTED = 10_000
"""Characters of a pasted text that are taken."""

FRAME_SECONDS = 0.5
"""Time between two drawings; a key press draws at once."""

_STYLES: list[str | PurePath] = [Path(__file__).with_name("app.tcss")]
if TYPE_CHECKING:
    from hetero_tui.machines import Machines
    from hetero_tui.state import RunView, State
    from hetero_tui.ui.view_actions import Intents


class HeteroApp(MachineActions):
    """The screens over a live session.

    Args:
        intents: The session: its state is drawn, and it carries out what the keys ask for. Or an async function that
            opens one: it is called after the first frame, so that slow imports and the inventory's file do not delay
            it. If it raises, the app ends, and the error is in :attr:`opening_error` for the caller to report; a
            mistake in the inventory's file is shown instead where that is watched.
        on_start: Operations to carry out once the first frame is painted, one after the other until one fails:
            ``probe``, ``up``, ``train``.
        paths: What is sent along with its file.
        quit_key: What leaving means: :data:`~hetero_tui.ui.keys.QUIT`, or for the demo
            :data:`~hetero_tui.ui.keys.QUIT_FOR_GOOD`, which says nothing on the way out.
        chaos: Turns the demo's chaos on and off; without it there is no key for that.
        changes: Yields after each change of the inventory's file, whose path ``inventory_path`` is; the session is
            then opened anew.
        inventory_path: Of the inventory's file, for people and their editor.
        machines: That file, for the forms; without it they are refused.
        now: The clock, in seconds since the epoch.
        zone: The time zone of the times that are shown; None is the computer's own.
    """

    TITLE = "hetero-tui"
    recorded: ClassVar[bool] = False
    """Whether a recording is shown, in which nothing can be asked for."""
    CSS_PATH = _STYLES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "detach", show=False),
        Binding("ctrl+q", "detach", show=False, priority=True),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+p", "command_palette", show=False),
        Binding("escape", "show_all", show=False),
        *(Binding(str(number), f"view({number})", show=False) for number in VIEWS),
    ]

    def __init__(
        self,
        intents: Intents | Callable[[], Awaitable[Intents]],
        *,
        on_start: tuple[str, ...] = ("probe",),
        job: str | None = None,
        settings: Mapping[str, str] | None = None,
        paths: Sequence[str] = (),
        quit_key: Key = QUIT,
        chaos: Callable[[], Awaitable[None]] | None = None,
        changes: Callable[[], AsyncIterator[None]] | None = None,
        inventory_path: str = "",
        machines: Callable[[], Machines] | None = None,
        preferences: Preferences | None = None,
        now: Callable[[], float] = time.time,
        zone: tzinfo | None = None,
    ) -> None:
        preferences = preferences or Preferences()
        self._palette = preferred(os.environ, preferences.theme)
        super().__init__(ansi_color=not self._palette.background.startswith("#"))
        self.main = MainScreen(self.redraw)
        self.farewell = ""
        self.wants_demo = False
        self._opener = intents if callable(intents) else None
        self._intents: Intents = Opening() if callable(intents) else intents
        self.opening_error: Exception | None = None
        self._mistakes: tuple[str, ...] = ()
        self._changes = changes
        self._inventory_path = inventory_path
        self._machines = machines
        self._on_start = self._ahead = on_start
        self._order = (job, dict(settings or {}), tuple(paths))
        self._quit_key = quit_key
        self._chaos = chaos
        self._readonly = preferences.readonly
        self._calls = preferences.bell
        self._seen = self._intents.state
        self._keys = (*KEYS, *(() if chaos is None else (CHAOS,)))
        self._allowed = allowed(KEYS, readonly=self._readonly, recorded=self.recorded)
        self._tutorial_keys = allowed((ADD, EDIT, DEMO), readonly=self._readonly)
        self._more_keys = allowed(() if chaos is None else (CHAOS,), readonly=self._readonly)
        for key in (*self._keys, *self._tutorial_keys):
            asks = key.action in ASKING
            self._bindings.bind(key.code, key.action, description=key.help, show=False, priority=asks)
        self._now = now
        self._zone = zone
        self._opened: RunView | None = None
        self._operations = Operations(self, now=now, redraw=self.redraw, log=lambda: self._intents.state.log)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._drawn_second = 0
        for palette in PALETTES:
            self.register_theme(theme_of(palette))
        # Set before anything watches it: the style sheets are then read once, with our colours, and not twice.
        self.set_reactive(App.theme, self._palette.name)
        self.stylesheet.set_variables(self.get_css_variables())
        self._dirty = True

    # --- What is drawn, and when -------------------------------------------------------------------------------------

    def view(self) -> View:
        """The input of one frame."""
        intents = self._intents
        busy = "" if self._is_unreadable else intents.busy
        return View(
            state=intents.state.present,
            busy=busy,
            now=self._now(),
            zone=self._zone,
            palette=self._palette,
            inventory_path=intents.inventory_path or self._inventory_path,
            mistakes=self._mistakes,
            notes=self._operations.notes,
            keys=self._allowed,
            quit_key=self._quit_key,
            more_keys=(*self._tutorial_keys, *self._more_keys) if self._is_empty else self._more_keys,
            readonly=self._readonly,
            number=self.main.number,
            awaits_run="train" in self._ahead,
            opened=self._opened,
        )

    @property
    def _is_unreadable(self) -> bool:
        return bool(self._mistakes) and isinstance(self._intents, Opening)

    @property
    def _is_empty(self) -> bool:
        """Whether there are no machines: there is another key then than those for them."""
        return not self._intents.state.hosts and (self._is_unreadable or self._intents.busy != BUSY)

    @property
    def intents(self) -> Intents:
        """The session, once it is open."""
        return self._intents

    def get_driver_class(self) -> type[Driver]:
        return enduring(super().get_driver_class())

    def get_default_screen(self) -> Screen[Any]:
        return self.main

    def on_mount(self) -> None:
        self._subscribe()
        self.set_interval(FRAME_SECONDS, self._tick)
        self.call_after_refresh(self._start)

    def on_unmount(self) -> None:
        self._unsubscribe()
        gc.unfreeze()

    def _subscribe(self) -> None:
        self._unsubscribe()
        self._seen = self._intents.state
        self._unsubscribe = self._intents.subscribe(self._changed)

    def _changed(self, state: State) -> None:
        """Another state is drawn with the next frame; the user is called for what needs one."""
        self._dirty = True
        before, self._seen = self._seen, state
        self._follow_log_of_new_run(before.run, state.run)
        call = call_for(before, state) if self._calls else None
        if call is not None:
            level, text = call
            self.bell()
            self.notify(text, severity="error" if level is Level.BAD else "information", markup=False)

    def _tick(self) -> None:
        """Draw if something happened or a second has passed: ages grow without an event."""
        second = int(self._now())
        if self._dirty or second != self._drawn_second:
            self._drawn_second = second
            self.redraw()

    def redraw(self) -> None:
        """Draw what changed, ages included. A mistake of ours in drawing is shown and logged; the app goes on."""
        self._dirty = False
        if self._exit:
            return  # the screens are being taken away
        try:
            view = self.view()
            for screen in self.screen_stack:
                if isinstance(screen, Drawn) and screen.is_mounted:
                    screen.draw(view)
        except Exception as mistake:  # noqa: BLE001 (a frame is not worth the session that it shows)
            self._operations.report_bug("drawing", mistake)

    async def on_event(self, event: events.Event) -> None:
        """A key that no widget took comes back, and does what it is for: it is drawn at once, but not twice.

        Pasted text has no control characters: a field shows what is in it, and they would reach the terminal.
        """
        if isinstance(event, events.Paste):
            event.text = plain(event.text, _PASTED).replace("\t", " ")
        is_back = isinstance(event, events.Key) and event.is_forwarded
        self._dirty = self._dirty or is_back
        await super().on_event(event)
        if is_back and self._dirty:
            self.call_later(self.redraw)

    # --- Leaving ------------------------------------------------------------------------------------------------------

    async def action_quit(self) -> None:
        self.action_detach()

    def action_interrupt(self) -> None:
        """Leave, from a dialog too; with selected text the key copies that, as in other programs."""
        selected = getattr(self.focused, "selected_text", "") or self.screen.get_selected_text()
        if selected:
            self.copy_to_clipboard(selected)
            self._say("The selected text is copied; ctrl+q leaves.")
        else:
            self.action_detach()

    def action_detach(self) -> None:
        """Leave; asks first if that cuts something off. :attr:`farewell` is printed where the screen was."""
        from hetero_tui.ui.screens.questions import LeaveScreen

        if isinstance(self.screen, LeaveScreen):
            self.screen.dismiss(True)  # the same key again is the answer
        elif self._quit_key is not QUIT:
            self.exit()
        elif half_way(self._intents.busy):
            self.push_screen(LeaveScreen(self.view), lambda leaves: self._leave() if leaves else None)
        else:
            self._leave()

    def _leave(self) -> None:
        self.farewell = farewell(self._intents.state, self._intents.busy)
        self.exit(message=self.farewell or None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Of two actions that have the same key unless a user gave them others, only one makes sense."""
        if action in ("drain", "demo") and (action == "demo") is not self._is_empty:
            return False
        return super().check_action(action, parameters)

    def action_demo(self) -> None:
        """Leave for the demo, which the caller starts."""
        self.wants_demo = True
        self.exit()

    # --- On start, and when the inventory changes ---------------------------------------------------------------------

    def _start(self) -> None:
        """What was asked for on start, once the first frame is on the screen."""
        _spare_what_stays()
        if self._opener is not None or (self._on_start and self._intents.state.hosts):
            self.run_worker(self._carry_out_all(), exit_on_error=False)
        if self._changes is not None:
            self.run_worker(self._follow_changes(self._changes), exit_on_error=False)

    async def _carry_out_all(self) -> None:
        if await self._open() and self._intents.state.hosts:
            await self._carry_out_ahead()
        self._ahead = ()
        self.redraw()

    async def _carry_out_ahead(self) -> None:
        job, settings, paths = self._order
        for index, name in enumerate(self._on_start):
            self._ahead = self._on_start[index:]
            operations: dict[str, Callable[[], Awaitable[object]]] = {
                "probe": self._intents.probe,
                "up": self._intents.up,
                "train": lambda: self._intents.train(job or self._intents.jobs[0], settings, paths),
            }
            if not await self._operations.carry_out(name, operations[name]):
                return

    async def _open(self) -> bool:
        """The session, where it is still to be opened; False when that failed: the app ends, or waits for the file."""
        if self._opener is None or not isinstance(self._intents, Opening):
            return True
        return await self._open_anew()

    async def _open_anew(self) -> bool:
        assert self._opener is not None, "only what is opened here is opened again"
        try:
            session = await self._opener()
        except InventoryError as error:
            if self._changes is not None:
                self._mistakes = error.mistakes
                self.redraw()
                return False
            return self._give_up(error)
        except Exception as error:  # noqa: BLE001 (kept for the caller: without a session there is nothing to show)
            return self._give_up(error)
        former, self._intents = self._intents, session
        self._mistakes = ()
        self._subscribe()
        self.redraw()
        await former.close()
        _spare_what_stays()
        return True

    def _give_up(self, error: Exception) -> bool:
        self.opening_error = error
        self.exit(return_code=error.exit_code if isinstance(error, HeteroTuiError) else 1)
        return False

    async def _idle(self) -> None:
        """Wait until no operation is under way: the session tells of each end."""
        told = asyncio.Event()
        unsubscribe = self._intents.subscribe(lambda _: told.set())
        try:
            while self._intents.busy:
                told.clear()
                await told.wait()
        finally:
            unsubscribe()

    async def _follow_changes(self, changes: Callable[[], AsyncIterator[None]]) -> None:
        """Apply each change of the inventory's file: a fleet with mistakes does not replace one without."""
        async for _ in changes():
            if self._intents.busy and not isinstance(self._intents, Opening):
                self._say("The inventory has changed; it is read once this is done.")
                await self._idle()
            had = bool(self._intents.state.hosts)
            if not await self._open_anew():
                if had:
                    why = "; ".join(self._mistakes)
                    self._tell(f"The inventory can't be used, and the machines stay as they were: {why}", Level.BAD)
                continue
            self._tell("The inventory was read again.", Level.GOOD)
            if self._intents.state.hosts:
                await self._operations.carry_out("probe", self._intents.probe)


def _spare_what_stays() -> None:
    """Let the garbage collector pass over what there is now: modules, style sheets, widgets.

    A new layout makes so much garbage that every few key presses it would go through all of that, for 20 to 35 ms.
    """
    gc.freeze()
