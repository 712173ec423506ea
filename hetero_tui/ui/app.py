"""The terminal app: keys become intents, and the state is drawn at most twice a second.

Contents: what is drawn (:meth:`HeteroApp.view`), when (:meth:`HeteroApp.redraw`), the actions in the order of
:data:`~hetero_tui.ui.keys.KEYS`, and what happens on start. How things look, and how an operation is carried out, is
decided elsewhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from hetero_tui.errors import HeteroTuiError
from hetero_tui.ui import guards
from hetero_tui.ui.keys import CHAOS, KEYS, QUIT, Key
from hetero_tui.ui.opening import Opening
from hetero_tui.ui.operations import Operations
from hetero_tui.ui.palette import DARK, LIGHT, preferred
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.sentences import farewell
from hetero_tui.ui.theme import theme_of
from hetero_tui.ui.view import Drawn, View

FRAME_SECONDS = 0.5
"""Time between two drawings; a key press draws at once."""

_STYLES: list[str | PurePath] = [Path(__file__).with_name("app.tcss")]
if TYPE_CHECKING:
    from hetero_tui.intents import Intents, TeardownReport


class HeteroApp(App[None]):
    """The screens over a live session.

    Args:
        intents: The session: its state is drawn, and it carries out what the keys ask for. Or an async function that
            opens one: it is called after the first frame, so that slow imports and the inventory's file do not delay
            it. If it raises, the app ends, and the error is in :attr:`opening_error` for the caller to report.
        on_start: Operations to carry out once the first frame is painted, one after the other until one fails:
            ``probe``, ``up``, ``train``.
        job: What ``train`` in ``on_start`` trains.
        settings: Settings for it.
        paths: What is sent along with its file.
        quit_key: What leaving means: :data:`~hetero_tui.ui.keys.QUIT`, or for the demo
            :data:`~hetero_tui.ui.keys.QUIT_FOR_GOOD`, which says nothing on the way out.
        chaos: Turns the demo's chaos on and off; without it there is no key for that.
        now: The clock, in seconds since the epoch.
        zone: The time zone of the times that are shown; None is the computer's own.
    """

    TITLE = "hetero-tui"
    CSS_PATH = _STYLES
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key.code, key.action, key.help, show=False) for key in KEYS),
        Binding("q,ctrl+q", "detach", show=False),
        Binding("ctrl+p", "command_palette", show=False),
        Binding("escape", "show_all", show=False),
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
        now: Callable[[], float] = time.time,
        zone: tzinfo | None = None,
    ) -> None:
        super().__init__()
        self.main = MainScreen(self.redraw)
        self.farewell = ""
        self._opener = intents if callable(intents) else None
        self._intents: Intents = Opening() if callable(intents) else intents
        self.opening_error: Exception | None = None
        self._on_start = on_start
        self._order = (job, dict(settings or {}), tuple(paths))
        self._quit_key = quit_key
        self._chaos = chaos
        self._more_keys = () if chaos is None else (CHAOS,)
        for key in self._more_keys:
            self.bind(key.code, key.action, description=key.help, show=False)
        self._now = now
        self._zone = zone
        self._operations = Operations(self, now=now, redraw=self.redraw)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._drawn_second = 0
        self._palette = preferred(os.environ)
        for palette in (DARK, LIGHT):
            self.register_theme(theme_of(palette))
        # Set before anything watches it: the style sheets are then read once, with our colours, and not twice.
        self.set_reactive(App.theme, self._palette.name)
        self.stylesheet.set_variables(self.get_css_variables())
        self._dirty = True

    # --- What is drawn, and when -------------------------------------------------------------------------------------

    def view(self) -> View:
        """The input of one frame."""
        return View(
            state=self._intents.state,
            busy=self._intents.busy,
            now=self._now(),
            zone=self._zone,
            palette=self._palette,
            inventory_path=self._intents.inventory_path,
            notes=self._operations.notes,
            quit_key=self._quit_key,
            more_keys=self._more_keys,
        )

    @property
    def intents(self) -> Intents:
        """The session, once it is open."""
        return self._intents

    def get_default_screen(self) -> Screen[Any]:
        return self.main

    def on_mount(self) -> None:
        self._subscribe()
        self.set_interval(FRAME_SECONDS, self._tick)
        self.call_after_refresh(self._start)

    def on_unmount(self) -> None:
        self._unsubscribe()

    def _subscribe(self) -> None:
        self._unsubscribe()
        self._unsubscribe = self._intents.subscribe(lambda _: self._mark_dirty())

    def _mark_dirty(self) -> None:
        self._dirty = True

    def _tick(self) -> None:
        """Draw if something happened or a second has passed: ages grow without an event."""
        second = int(self._now())
        if self._dirty or second != self._drawn_second:
            self._drawn_second = second
            self.redraw()

    def redraw(self) -> None:
        """Draw what changed, ages included. A mistake of ours in drawing is shown and logged; the app goes on."""
        self._dirty = False
        try:
            view = self.view()
            for screen in self.screen_stack:
                if isinstance(screen, Drawn) and screen.is_mounted:
                    screen.draw(view)
        except Exception as mistake:  # noqa: BLE001 (a frame is not worth the session that it shows)
            self._operations.report_bug("drawing", mistake)

    async def on_event(self, event: events.Event) -> None:
        await super().on_event(event)
        if isinstance(event, events.Key):
            self.call_later(self.redraw)

    # --- Actions, in the order of the keys ---------------------------------------------------------------------------

    def action_help(self) -> None:
        from hetero_tui.ui.screens.help import HelpScreen

        self.push_screen(HelpScreen(self.view))

    def action_host(self) -> None:
        from hetero_tui.ui.screens.host import HostScreen

        marked = self.main.hosts.rows.marked
        if marked is None:
            self._say("There is no machine to look at.")
        else:
            self.push_screen(HostScreen(self.view, marked))

    def on_host_lines_opened(self) -> None:
        self.action_host()

    def action_probe(self) -> None:
        if not self._refused(guards.PROBE):
            self._operations.begin("probe", self._intents.probe)

    def action_up(self) -> None:
        if not self._refused(guards.UP):
            self._operations.begin("up", self._intents.up)

    def action_train(self) -> None:
        from hetero_tui.ui.screens.train import TrainOrder, TrainScreen

        def answered(order: TrainOrder | None) -> None:
            if order is not None and not self._refused(guards.TRAIN):
                self._operations.begin("train", lambda: self._intents.train(order.job, order.settings, order.paths))

        if not self._refused(guards.TRAIN):
            intents = self._intents
            screen = TrainScreen(self.view, intents.jobs, len(intents.state.hosts), intents.mistakes_in)
            self.push_screen(screen, answered)

    def action_stop(self) -> None:
        if not self._refused(guards.STOP):
            self._operations.begin("stop", self._intents.stop_run)

    def action_resume(self) -> None:
        if not self._refused(guards.RESUME):
            self._operations.begin("resume", self._intents.resume)

    def action_key(self) -> None:
        from hetero_tui.ui.screens.host_key import HostKeyScreen

        host = guards.offering(self._intents.state, self.main.hosts.rows.marked)
        if host is None:
            self._refused(guards.KEY)
            return
        name = host.name

        def answered(trust: bool | None) -> None:
            if trust:
                self._operations.begin("trust", lambda: self._trust(name))

        self.push_screen(HostKeyScreen(self.view, host), answered)

    async def _trust(self, host: str) -> None:
        self._intents.accept_host_key(host)
        if not self._intents.busy:
            await self._intents.probe()

    def action_filter(self) -> None:
        if self._intents.state.hosts:
            self.main.hosts.start_filter()
        else:
            self._say("There are no machines to filter.")

    def action_teardown(self) -> None:
        from hetero_tui.ui.screens.teardown import TeardownScreen

        if self._refused(guards.DOWN):
            return

        def begin() -> None:
            self._operations.begin("teardown", lambda: self._tear_down(dialog))

        dialog = TeardownScreen(self.view, self._intents.teardown_preview(), begin)
        self.push_screen(dialog)

    async def _tear_down(self, dialog: Any) -> None:
        report: TeardownReport | None = None
        failure = ""
        try:
            report = await self._intents.down()
        except HeteroTuiError as error:
            failure = str(error)
            raise
        finally:
            if dialog in self.screen_stack:
                dialog.finish(report, failure)
        if dialog not in self.screen_stack:
            left = len(report.leftovers)
            things = "1 thing is" if left == 1 else f"{left} things are"
            self._say(f"Torn down, but {things} left: see hetero-tui down." if left else "Torn down: nothing is left.")

    def action_chaos(self) -> None:
        if self._chaos is not None:
            self._operations.begin("chaos", self._chaos)

    def action_show_all(self) -> None:
        """Escape: from the filter's field or the event log back to all hosts."""
        self.main.hosts.end_filter(keep=False)
        self.redraw()

    async def action_quit(self) -> None:
        self.action_detach()

    def action_detach(self) -> None:
        """Leave. :attr:`farewell` is then what there is to say; it is printed where the screen was."""
        if self._quit_key is QUIT:
            self.farewell = farewell(self._intents.state)
        self.exit(message=self.farewell or None)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The command palette's entries: our keys by name, and nothing of Textual's but the other theme."""
        for key in (*KEYS, *self._more_keys, self._quit_key):
            if key.action != "command_palette":
                action = getattr(self, f"action_{key.action}")
                yield SystemCommand(key.word.capitalize(), f"{key.help} (key {key.key})", action)
        yield SystemCommand("Other colours", "Dark or light", self.action_colours)

    def action_colours(self) -> None:
        self._palette = LIGHT if self._palette is DARK else DARK
        self.theme = self._palette.name
        self.redraw()

    # --- On start -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """What was asked for on start, once the first frame is on the screen."""
        if self._opener is not None or (self._on_start and self._intents.state.hosts):
            self.run_worker(self._carry_out_all(), exit_on_error=False)

    async def _carry_out_all(self) -> None:
        if not await self._open() or not self._intents.state.hosts:
            return
        job, settings, paths = self._order
        for name in self._on_start:
            operations: dict[str, Callable[[], Awaitable[object]]] = {
                "probe": self._intents.probe,
                "up": self._intents.up,
                "train": lambda: self._intents.train(job or self._intents.jobs[0], settings, paths),
            }
            if not await self._operations.carry_out(name, operations[name]):
                return

    async def _open(self) -> bool:
        """The session, where it is still to be opened; False when that failed and the app ends."""
        if self._opener is None:
            return True
        try:
            self._intents = await self._opener()
        except Exception as error:  # noqa: BLE001 (kept for the caller: without a session there is nothing to show)
            self.opening_error = error
            self.exit(return_code=error.exit_code if isinstance(error, HeteroTuiError) else 1)
            return False
        self._opener = None
        self._subscribe()
        self.redraw()
        return True

    def _refused(self, action: str) -> bool:
        """Say why an action makes no sense now, if it does not."""
        reason = guards.refusal(action, self._intents.state, self._intents.busy)
        if reason is not None:
            self._say(reason)
        return reason is not None

    def _say(self, words: str) -> None:
        self.notify(words, markup=False)
