"""The questions before a run is stopped, a machine is removed, a key is trusted, or the app is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import Button

from hetero_tui.intents import half_way
from hetero_tui.state import IN_CLUSTER, HostView
from hetero_tui.ui.details import wrapped
from hetero_tui.ui.header import ending
from hetero_tui.ui.screens.dialog import Dialog, button
from hetero_tui.ui.view import View


class StopScreen(Dialog[bool]):
    """Answers True when the run is to be stopped."""

    def __init__(self, view: Callable[[], View], run: str) -> None:
        super().__init__(view, title=f"Stop {run}?")
        self._run = run

    def text(self, view: View, width: int) -> list[Text]:
        """Where it is, and what is kept; it goes on while this is asked."""
        run, palette = view.state.run, view.palette
        is_over = run is None or run.run != self._run or run.state.final
        if is_over and self.query_one("#stop").display:
            self.query_one("#stop").display = False
            self.relabel("leave", "Close")
            self.retitle(f"{self._run} has ended")
            self.query_one("#leave").focus()
        resumed = f"It can be resumed with {view.key_of('resume')}."
        if run is None or is_over:
            how = f"{self._run} {ending(run)}" if run is not None and run.run == self._run else f"{self._run} has ended"
            said = [f"{how} meanwhile: there is nothing to stop any more."]
        elif run.behind is not None:
            said = ["It ends after its step, with a checkpoint.", resumed]
        elif not run.step:
            said = ["It is still starting: it ends before its first step, or after that with a checkpoint."]
        else:
            said = [f"It ends after its step, now {run.step:,}, with a checkpoint.", resumed]
        return [Text(part, style=palette.foreground) for line in said for part in wrapped(line, width)]

    def buttons(self) -> Iterable[Button]:
        yield button("Let it go on", "leave")
        yield button("Stop", "stop", danger=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "stop":
            self.dismiss(True)


class LeaveScreen(Dialog[bool]):
    """Answers True when the app is to be left all the same."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "detach", show=False)]

    def __init__(self, view: Callable[[], View]) -> None:
        super().__init__(view, title="Leave now?")

    def text(self, view: View, width: int) -> list[Text]:
        """What would be cut off; that may end while this is asked."""
        left = half_way(view.busy)
        said = f"What is under way would be {left}." if left else "What was under way is done."
        return [Text(part, style=view.palette.foreground) for part in wrapped(said, width)]

    def buttons(self) -> Iterable[Button]:
        yield button("Stay", "leave")
        yield button("Leave", "detach", danger=True)

    def action_detach(self) -> None:
        """The same key again is the answer."""
        self.dismiss(True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "detach":
            self.dismiss(True)


class RemoveScreen(Dialog[bool]):
    """Answers True when the machine is to be taken out."""

    def __init__(self, view: Callable[[], View], host: str) -> None:
        super().__init__(view, title=f"Remove {host}?")
        self._host = host

    def text(self, view: View, width: int) -> list[Text]:
        """What is done, and what is not."""
        palette = view.palette
        said = [
            f"{self._host} is taken out of {view.inventory_path}; comments and all else there stay.",
            "Nothing is done on the machine: what is of ours there goes with the next teardown, now as before.",
        ]
        lines = [Text(part, style=palette.foreground) for words in said for part in wrapped(words, width)]
        host = view.state.host(self._host)
        if host is not None and host.state in IN_CLUSTER:
            warning = "It is in the cluster, and stays there until the teardown."
            lines += [Text(part, style=palette.warning) for part in wrapped(warning, width)]
        return lines

    def buttons(self) -> Iterable[Button]:
        yield button("Cancel", "leave")
        yield button("Remove", "remove", danger=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "remove":
            self.dismiss(True)


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
