"""The question before a run is stopped: what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.text import Text
from textual.widgets import Button

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
