"""Implements the keys that change only what is shown: the views, filters and plots, the logs, the command palette."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from textual.app import App, SystemCommand
from textual.screen import Screen
from textual.widgets import Input

from hetero_tui.errors import HeteroTuiError
from hetero_tui.events import Level
from hetero_tui.state import RunView
from hetero_tui.ui import format as fmt
from hetero_tui.ui.keys import ASKING, FAULTS, FLEET, LOGS, RUN, RUNS, VIEWS, Key
from hetero_tui.ui.operations import Operations
from hetero_tui.ui.palette import PALETTES, Palette
from hetero_tui.ui.screens.main import MainScreen
from hetero_tui.ui.view import View
from hetero_tui.ui.views.pane import Pane
from remote_agent.states import stands_at

if TYPE_CHECKING:
    from hetero_tui.app_session import AppSession
    from hetero_tui.intents import Refusing

    Intents = AppSession | Refusing
    """The session that the screens show and ask, or what stands in its place."""


class ViewActions(App[None]):
    """Nothing here changes anything on the machines."""

    main: MainScreen
    _intents: Intents
    _operations: Operations
    _keys: tuple[Key, ...]
    _allowed: tuple[Key, ...]
    _more_keys: tuple[Key, ...]
    _quit_key: Key
    _palette: Palette
    _opened: RunView | None

    def view(self) -> View:
        """The input of one frame."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw what changed."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key does what it says in the views that it is for, and nothing where something is typed."""
        if action in ASKING and (self.screen is not self.main or isinstance(self.focused, Input)):
            return False
        key = next((key for key in self._keys if key.action == action), None)
        if key is not None and self.screen is self.main and self.main.number not in key.views:
            return False
        if key is not None and not any(key.action == other.action for other in self._allowed_here()):
            recorded = "This is a recording: its machines can't be asked for more."
            self._say("This app only shows: nothing on the machines is changed." if key.changes else recorded)
            return False
        return super().check_action(action, parameters)

    def _allowed_here(self) -> tuple[Key, ...]:
        """The keys that this app allows in the view that is shown."""
        return tuple(key for key in (*self._allowed, *self._more_keys) if self.main.number in key.views)

    async def action_view(self, number: int) -> None:
        if self.screen is not self.main:
            return
        await self.main.show_pane(number)
        if number == RUNS and not self._intents.busy and self._intents.state.hosts:
            self._operations.begin("list runs", self._intents.list_runs)
        if number == LOGS:
            self._read_logs("", "")

    def action_help(self) -> None:
        from hetero_tui.ui.screens.help import HelpScreen

        self.push_screen(HelpScreen(self.view))

    async def action_open(self) -> None:
        """All of the marked host; or the marked run, from its record."""
        if self.main.number == RUNS:
            marked = self._marked()
            if marked is not None:
                self._operations.begin("read run", lambda: self._open_run(marked))
            return
        from hetero_tui.ui.screens.help import HostScreen

        host = self.main.hosts.rows.marked
        if host is None:
            self._say("There is no machine to look at.")
        else:
            self.push_screen(HostScreen(self.view, host))

    async def _open_run(self, run: str) -> None:
        live = self._intents.state.run
        self._opened = None if live is not None and live.run == run else await self._intents.read_run(run)
        await self.main.show_pane(RUN)

    async def action_logs(self) -> None:
        """The log of the marked host, run, or fault's host."""
        run, host = self._meant_run() or "", self._meant_host() or ""
        await self.main.show_pane(LOGS)
        self._read_logs(run, host, anew=True)

    def _read_logs(self, run: str, host: str, *, anew: bool = False) -> None:
        """Have the log's view filled: with what is asked for, else with the run on the screen.

        What is there stays as long as it is whole: a read that failed begins anew, so does one whose run goes on again.
        """
        from hetero_tui.ui.views.logs import ENDED, READING, LogsPane

        pane = self.main.pane
        assert isinstance(pane, LogsPane)
        shown = self.view().run
        run = run or (shown.run if shown is not None else "") or pane.run
        if not run and self._intents.state.runs:
            run = self._intents.state.runs[-1].id
        host = host if anew or run != pane.run else pane.host
        live = self._intents.state.run
        is_whole = pane.reading == READING or (
            pane.reading == ENDED and (live is None or live.run != run or live.state.final)
        )
        if run and (run, host) == (pane.run, pane.host) and is_whole:
            return
        if not self._intents.state.hosts:
            return
        pane.begin(run, host)
        self.redraw()
        self.run_worker(self._follow_logs(pane, run, host), group="logs", exclusive=True, exit_on_error=False)

    def _follow_log_of_new_run(self, before: RunView | None, now: RunView | None) -> None:
        """The log of the session's run is that of the next one once there is one; another run's stays."""
        from hetero_tui.ui.views.logs import LogsPane

        pane = self.main.pane
        was = before.run if before is not None else ""
        if isinstance(pane, LogsPane) and now is not None and now.run != was and pane.run in ("", was):
            self._read_logs(now.run, pane.host)

    async def _follow_logs(self, pane: Any, run: str, host: str) -> None:
        """Show what a run's processes log; without a name the newest run's, for which the machines are asked first."""
        try:
            if not run:
                await self._intents.list_runs()
                pane.run = run = next((known.id for known in reversed(self._intents.state.runs or ())), "")
            if run:
                async for entry in self._intents.logs(run, host):
                    pane.add(entry)
        except HeteroTuiError as error:
            pane.end(str(error))
        except Exception as mistake:  # noqa: BLE001 (a mistake of ours must not take the screen of a live run with it)
            self._operations.report_bug("reading logs", mistake)
            pane.end("a bug in hetero-tui")
        else:
            pane.end()

    def action_filter(self) -> None:
        from hetero_tui.ui.views.logs import LogsPane

        pane = self.main.pane
        if isinstance(pane, LogsPane):
            pane.start_filter()
        elif pane.table is None or not pane.table.rows.lines:
            self._say(
                "There are no machines to filter." if self.main.number == FLEET else "There is nothing to filter."
            )
        else:
            pane.table.start_filter()
        self.redraw()

    def action_sort(self) -> None:
        table = self.main.pane.table
        if table is None or not table.orders:
            self._say("There is nothing to sort here.")
        else:
            table.sort_next()
            self.redraw()

    def action_copy(self) -> None:
        copied = self.main.pane.copied
        if copied:
            self.copy_to_clipboard(copied)
        lines = copied.count("\n") + 1
        self._say(f"Copied {fmt.plural(lines, 'line')}." if copied else "There is nothing to copy.")

    # --- Of one view --------------------------------------------------------------------------------------------------

    def action_scale(self) -> None:
        self._toggle("is_logarithmic")

    def action_smooth(self) -> None:
        self._toggle("is_smooth")

    def action_follow(self) -> None:
        self._toggle("follows")

    def action_zoom(self) -> None:
        pane: Any = self.main.pane
        pane.zoom = (pane.zoom + 1) % 3
        self.redraw()

    def _toggle(self, name: str) -> None:
        pane: Pane = self.main.pane
        setattr(pane, name, not getattr(pane, name))
        self.redraw()

    def action_source(self) -> None:
        pane: Any = self.main.pane
        pane.next_source()
        self.redraw()

    def action_mark(self) -> None:
        pane: Any = self.main.pane
        pane.choose()
        self.redraw()

    def action_compare(self) -> None:
        pane: Any = self.main.pane
        if len(pane.chosen) != 2:
            self._say("Mark two runs with space first.")
        else:
            self._operations.begin("compare", lambda: self._compare(pane))

    async def _compare(self, pane: Any) -> None:
        pane.compared = tuple([await self._intents.read_run(run) for run in pane.chosen])

    def action_save(self) -> None:
        pane: Any = self.main.pane
        copied = pane.copied
        if copied:
            self._operations.begin("save", lambda: self._save(f"{pane.run or 'hetero-tui'}.log", copied))
        else:
            self._say("There is nothing to save.")

    async def _save(self, name: str, text: str) -> None:
        self._say(f"Written to {await self._intents.save(name, text)}")

    async def action_show_all(self) -> None:
        """Escape: out of the filter's field, then to all entries, then from a view back to the fleet."""
        pane = self.main.pane
        end: Any = pane if hasattr(pane, "end_filter") else pane.table
        if end is not None and (end.filter or isinstance(self.focused, Input)):
            end.end_filter(keep=False)
        elif self._opened is not None and self.main.number != FLEET:
            self._opened = None
            await self.main.show_pane(RUNS)
        elif self.main.number != FLEET:
            await self.main.show_pane(FLEET)
        else:
            pane.focus_first()
        self.redraw()

    # --- The command palette, the colours ----------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The command palette's entries: views, hosts, runs, our keys by name, and the other colours."""
        for number, word in VIEWS.items():
            yield SystemCommand(word, f"View {number}", lambda number=number: self.call_later(self.action_view, number))
        state = self._intents.state
        for host in state.hosts:
            yield SystemCommand(host.name, f"Machine, {host.state.words}", lambda name=host.name: self._show_host(name))
        for run in reversed(state.listed_runs or ()):
            about = f"Run, {run.state}" + (f" {stands_at(run.state, run.step)}" if run.step and not run.script else "")
            yield SystemCommand(
                run.id, about, lambda name=run.id: self._operations.begin("read run", lambda: self._open_run(name))
            )
        for key in (*self._allowed, *self._more_keys, self._quit_key):
            if key.action != "command_palette":
                where = "" if self.main.number in key.views else f" in {VIEWS[min(key.views)]}"
                about = f"{key.help} (key {key.key}{where})"
                yield SystemCommand(key.word.capitalize(), about, lambda key=key: self.call_later(self._command, key))
        yield SystemCommand("Other colours", "Dark, light, or the terminal's own", self.action_colours)

    async def _command(self, key: Key) -> None:
        """What the key does; where it is none of this view's, the view that it is of: what it is about is seen then."""
        if self.main.number in key.views:
            await self.run_action(key.action)
        else:
            await self.action_view(min(key.views))

    def _show_host(self, name: str) -> None:
        self.main.hosts.rows.mark(name)
        self.call_later(self.action_view, 1)

    def action_colours(self) -> None:
        self._palette = PALETTES[(PALETTES.index(self._palette) + 1) % len(PALETTES)]
        self.ansi_color = not self._palette.background.startswith("#")
        self.theme = self._palette.name
        self.redraw()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _marked(self) -> str | None:
        """What is marked in this view."""
        return self.main.pane.table.rows.marked if self.main.pane.table is not None else None

    def _meant_run(self) -> str | None:
        """The run that a key is about: the marked one in the list of them, in other views the one that is shown."""
        shown = self.view().run
        return self._marked() if self.main.number == RUNS else shown.run if shown is not None else None

    def _meant_host(self) -> str | None:
        """The marked host, or that of the marked fault."""
        marked = self._marked()
        run = self.view().run
        if self.main.number == FAULTS and run is not None and marked is not None:
            return next((fault.host for fault in run.faults if str(fault.number) == marked), None)
        return marked if self.main.number == FLEET else None

    def _say(self, words: str) -> None:
        self.clear_notifications()  # answers to several keys would cover a small terminal
        self.notify(words, markup=False)

    def _tell(self, words: str, level: Level) -> None:
        """Say it, and keep it in the log: a user may look elsewhere."""
        self._operations.note(words, level)
        self._say(words)
