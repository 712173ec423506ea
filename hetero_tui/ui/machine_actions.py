"""Implements the keys' actions on machines: the forms of the inventory, installing, and the check."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from hetero_tui.state import HostView
from hetero_tui.ui import guards, outside
from hetero_tui.ui.actions import Actions

if TYPE_CHECKING:
    from hetero_tui.errors import HostKeyUnknown
    from hetero_tui.machines import Machines
    from hetero_tui.ui.screens.install import InstallOrder
    from hetero_tui.ui.screens.machine import MachineOrder


class MachineActions(Actions):
    """The app watches the inventory's file: what is written there is on the screen a moment later."""

    _machines: Callable[[], Machines] | None

    # --- The inventory's file -----------------------------------------------------------------------------------------

    def action_add(self) -> None:
        """A form for a new machine."""
        from hetero_tui.ui.screens.machine import MachineScreen

        machines = self._editable()
        if machines is None:
            return
        self.push_screen(MachineScreen(self.view, machines, self._writer(machines, is_new=True)))

    def action_edit(self) -> None:
        """A form for the marked machine; with no machines, or beside that form, the file in the user's editor."""
        host = self.main.hosts.rows.marked
        if host is None or not self._intents.state.hosts:
            self._edit_file()
            return
        from hetero_tui.ui.screens.machine import MachineScreen

        machines = self._editable()
        typed = self._read(lambda: machines.form(host)) if machines is not None else None
        if machines is not None and typed is not None:
            begin = self._writer(machines, is_new=False)
            elsewhere = ("Open the file", self._edit_file)
            given = machines.inherited(host)
            self.push_screen(
                MachineScreen(self.view, machines, begin, elsewhere=elsewhere, name=host, typed=typed, inherited=given)
            )

    def action_remove(self) -> None:
        """Take the marked machine out of the inventory; asks first."""
        from hetero_tui.ui.screens.questions import RemoveScreen

        host = self.main.hosts.rows.marked
        machines = self._editable()
        if machines is None:
            return
        if host is None:
            self._say("There is no machine to remove.")
            return

        async def remove() -> None:
            taken = machines.remove(host)
            left = f" What may be left of ours there goes with {taken.commands[0]}." if taken.commands else ""
            self._say(f"{host} is no longer in the inventory.{left}")

        def answered(is_wanted: bool | None) -> None:
            if is_wanted:
                self._operations.begin("remove", remove)

        self.push_screen(RemoveScreen(self.view, host), answered)

    def _edit_file(self) -> None:
        path = self.view().inventory_path
        if not path:
            self._say("This fleet has no inventory file to edit.")
            return
        command, said = [*outside.editor(), path], "The editor could not be run ({}); set EDITOR."
        self._operations.begin("edit", lambda: self._outside(command, said))

    def _editable(self) -> Machines | None:
        """The inventory's file; None, which is then said, where there is none or it has mistakes."""
        if self._machines is None:
            self._say("This fleet has no inventory file to change.")
            return None
        machines = self._machines()
        return machines if self._read(machines.hosts) is not None else None

    def _writer(self, machines: Machines, *, is_new: bool) -> Callable[[MachineOrder], Awaitable[str]]:
        """Looks at a machine where how it is reached is new, and writes it; the answer says why it was not."""
        from hetero_tui.machines import fields_of
        from hetero_tui.ui.screens.machine import TARGET

        def is_reached_as_before(order: MachineOrder) -> bool:
            before: Mapping[str, str] = {} if is_new else machines.form(order.name)
            ways = (TARGET, "identity_file", "proxy_jump", "known_hosts", "python")
            return not is_new and all(before.get(way, "") == order.typed.get(way, "") for way in ways)

        async def write(order: MachineOrder) -> str:
            fields = fields_of(order.typed)
            said = "changed"
            if not (order.is_wanted_anyway or is_reached_as_before(order)):
                found = await machines.look(order.name, fields, self._trusts, is_new=is_new)
                if found.error is not None and not found.can_be_used:
                    return f"{found.error}"
                said = found.words
            machines.write(order.name, fields, is_new=is_new)
            self._say(f"{order.name} is in {machines.path}: {said}")
            return ""

        async def carried_out(order: MachineOrder) -> str:
            refusal = ""

            async def operation() -> None:
                nonlocal refusal
                refusal = await write(order)

            done = await self._operations.carry_out("add" if is_new else "edit", operation)
            return refusal if done else self._operations.failure

        return carried_out

    async def _trusts(self, name: str, error: HostKeyUnknown) -> bool:
        from hetero_tui.ui.screens.questions import HostKeyScreen

        offering = HostView(name=name, address=error.host, offered_key=error.fingerprint, offered_by=error.endpoint)
        answer: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self.push_screen(HostKeyScreen(self.view, offering), answer.set_result)
        return bool(await answer)

    # --- Installing and checking --------------------------------------------------------------------------------------

    def action_install(self) -> None:
        """Give each machine that lacks one an environment; asks first."""
        from hetero_tui.fleet.install.lock import mistakes_in
        from hetero_tui.ui.screens.install import InstallScreen

        if self._refused(guards.INSTALL):
            return

        def begin(order: InstallOrder) -> None:
            self._operations.begin("install", lambda: self._install(dialog, order))

        dialog = InstallScreen(self.view, begin, mistakes_in)
        self.push_screen(dialog)

    async def _install(self, dialog: Any, order: InstallOrder) -> None:
        from hetero_tui.ui.screens.install import outcome

        report = await self._reported(
            dialog, lambda: self._intents.install(order.extras, from_laptop=order.from_laptop)
        )
        if dialog not in self.screen_stack:
            self._say(f"{outcome(report)}.")
        if any(entry.changed for entry in report.installed):
            await self._intents.probe()

    def action_check(self) -> None:
        """Look for all that may keep the machines from training well."""
        from hetero_tui.ui.screens.check import CheckScreen

        if self._refused(guards.CHECK):
            return

        def begin(mends: bool) -> None:
            self._operations.begin("check", lambda: self._check(dialog, mends))

        dialog = CheckScreen(self.view, begin)
        self.push_screen(dialog)

    async def _check(self, dialog: Any, mends: bool) -> None:
        from hetero_tui.ui.screens.check import outcome

        report = await self._reported(dialog, lambda: self._intents.look_for_problems(mends=mends))
        if dialog not in self.screen_stack:
            self._say(f"{outcome(report)}.{self.view().press(check='to see') if report.findings else ''}")
