"""The question before a new host key is trusted: which machine, which key, and how to check it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.text import Text
from textual.widgets import Button

from hetero_tui.state import HostView
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.screens.dialog import Dialog, button
from hetero_tui.ui.view import View


class HostKeyScreen(Dialog[bool]):
    """Answers True when the key is to be trusted."""

    def __init__(self, view: Callable[[], View], host: HostView) -> None:
        super().__init__(view, title=f"Trust {host.name}?")
        self._host = host

    def text(self, view: View, width: int) -> list[Text]:
        """The fingerprint, and the command that shows it on the machine itself."""
        palette, host = view.palette, self._host
        fingerprint = host.offered_key or ""
        what = f"{host.name} ({host.address})"
        if host.offered_by not in ("", host.address):  # another server, on the way there
            what = f"{host.offered_by}, for {host.name},"
        return [
            Text(f"{what} was never seen before. It shows this key:", style=palette.foreground),
            Text(""),
            *(Text(f"  {part}", style=f"bold {palette.accent}") for part in wrapped(fingerprint, width - 2)),
            Text(""),
            Text("If in doubt, compare it with what the machine itself says:", style=palette.foreground),
            Text("  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub", style=palette.muted),
        ]

    def buttons(self) -> Iterable[Button]:
        yield button("Cancel", "leave")
        yield button("Trust this key", "trust")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "trust":
            self.dismiss(True)
