"""Implements the keys that change runs and the cluster: each checks whether it makes sense now, asks, and begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hetero_tui.errors import HeteroTuiError
from hetero_tui.ui import guards, outside
from hetero_tui.ui.keys import RUNS
from hetero_tui.ui.view_actions import ViewActions

if TYPE_CHECKING:
    from hetero_tui.ui.screens.train import TrainOrder

T = TypeVar("T")


class Actions(ViewActions):
    """The actions, in the order of the keys; :class:`hetero_tui.ui.app.HeteroApp` says when the screens are drawn."""

    _chaos: Callable[[], Awaitable[None]] | None

    def action_probe(self) -> None:
        if not self._refused(guards.PROBE):
            self._operations.begin("probe", self._intents.probe)

    def action_up(self) -> None:
        if not self._refused(guards.UP):
            self._operations.begin("up", self._intents.up)

    def action_train(self) -> None:
        from hetero_tui.ui.screens.train import TrainScreen

        if self._refused(guards.TRAIN):
            return
        intents = self._intents
        self.push_screen(TrainScreen(self.view, intents.jobs, intents.mistakes_in, self._train))

    async def _train(self, order: TrainOrder) -> str:
        """Begin a run; the answer says why not, or is empty once it was accepted."""
        reason = guards.refusal(guards.TRAIN, self.view())
        if reason is not None:
            return reason
        self._opened = None
        done = await self._operations.carry_out(
            "train", lambda: self._intents.train(order.job, order.settings, order.paths)
        )
        return "" if done else self._operations.failure

    def action_stop(self) -> None:
        from hetero_tui.ui.screens.questions import StopScreen

        if self._refused(guards.STOP):
            return
        run = self._intents.state.run
        assert run is not None, "there is one to stop"

        def answered(stop: bool | None) -> None:
            if stop and not self._refused(guards.STOP):
                self._operations.begin("stop", lambda: self._intents.stop_run(run.run))

        self.push_screen(StopScreen(self.view, run.run), answered)

    def action_resume(self) -> None:
        chosen = self._meant_run()
        reason = guards.refusal(guards.RESUME, self.view(), chosen)
        if self.main.number == RUNS and chosen is None:
            self._say(reason or "No run is marked.")
        elif reason is not None:
            self._say(reason)
        else:
            self._opened = None
            self._operations.begin("resume", lambda: self._intents.resume(chosen))

    def action_key(self) -> None:
        from hetero_tui.ui.screens.questions import HostKeyScreen

        host = guards.offering(self._intents.state, self.main.hosts.rows.marked)
        if host is None:
            self._refused(guards.KEY)
            return
        name, fingerprint = host.name, host.offered_key

        def answered(trust: bool | None) -> None:
            if trust:
                self._operations.begin("trust", lambda: self._trust(name, fingerprint))

        self.push_screen(HostKeyScreen(self.view, host), answered)

    async def _trust(self, host: str, fingerprint: str | None) -> None:
        self._intents.accept_host_key(host, fingerprint)
        if not self._intents.busy:
            await self._intents.probe()

    def action_drain(self) -> None:
        host = self.main.hosts.rows.marked
        reason = guards.drain_refusal(self.view(), host)
        if reason is not None or host is None:
            self._say(reason or "There is no machine to drain.")
        else:
            self._operations.begin("drain", lambda: self._intents.drain(host))

    def action_bring_back(self) -> None:
        host = self._meant_host()
        reason = guards.back_refusal(self.view(), host)
        if reason is not None or host is None:
            self._say(reason or "There is no machine to bring back.")
        else:
            self._operations.begin("bring back", lambda: self._intents.bring_back(host))

    def action_shell(self) -> None:
        host = self.main.hosts.rows.marked
        if host is None:
            self._say("There is no machine to open a shell on.")
            return
        command = self._intents.shell_command(host)
        self._operations.begin("shell", lambda: self._outside(command, f"{host}: {{}}"))

    async def _outside(self, command: Sequence[str], said: str) -> None:
        """Hand the terminal to another program; ``said`` has a place for the reason why that failed."""
        error = await outside.run(self, command)
        if error:
            self._say(said.format(error))

    def action_teardown(self) -> None:
        from hetero_tui.ui.screens.teardown import TeardownScreen

        if self._refused(guards.DOWN):
            return

        def begin() -> None:
            self._operations.begin("teardown", lambda: self._tear_down(dialog))

        dialog = self._read(lambda: TeardownScreen(self.view, self._intents.teardown_preview, begin))
        if dialog is not None:
            self.push_screen(dialog)

    async def _tear_down(self, dialog: Any) -> None:
        from hetero_tui.ui.screens.teardown import outcome

        report = await self._reported(dialog, self._intents.down)
        if dialog not in self.screen_stack:
            self._say(outcome(report))

    async def _reported(self, dialog: Any, work: Callable[[], Awaitable[T]]) -> T:
        """What the work hands back; the dialog that began it shows that, or why there is none, while it is open."""
        report: T | None = None
        failure = ""
        try:
            report = await work()
        except HeteroTuiError as error:
            failure = str(error)
            raise
        finally:
            if dialog in self.screen_stack:
                dialog.finish(report, failure)
        return report

    def action_chaos(self) -> None:
        if self._chaos is not None:
            self._operations.begin("chaos", self._chaos)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _read(self, read: Callable[[], T]) -> T | None:
        """What is read; None where that fails, which is then said."""
        try:
            return read()
        except HeteroTuiError as error:
            self._say(str(error))
            return None

    def _refused(self, action: str) -> bool:
        """Say why an action makes no sense now, if it does not."""
        reason = guards.refusal(action, self.view())
        if reason is not None:
            self._say(reason)
        return reason is not None
