"""The app over a recording: the same screens, the recording's clock, and keys that move it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from hetero_tui.recording.replay import Replay
from hetero_tui.ui.app import HeteroApp
from hetero_tui.ui.keys import Key
from hetero_tui.ui.preferences import Preferences

REPLAY_KEYS = (
    Key(code="space", action="pause", help="Let the time stand still, or pass again"),
    Key(code="greater_than_sign", action="faster", help="Let the time pass twice as fast"),
    Key(code="less_than_sign", action="slower", help="Let the time pass half as fast"),
)
QUIT_REPLAY = Key(code="q", action="detach", said="quit", help="Leave")


class ReplayApp(HeteroApp):
    """Shows a recording from its beginning."""

    recorded = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding(key.code, key.action, key.help, show=False) for key in REPLAY_KEYS]

    def __init__(self, replay: Replay) -> None:
        super().__init__(
            replay, on_start=(), quit_key=QUIT_REPLAY, now=replay.now, preferences=Preferences(readonly=True)
        )
        self._replay = replay
        self._more_keys = REPLAY_KEYS

    def on_mount(self) -> None:
        super().on_mount()
        self.run_worker(self._replay.play())

    def action_pause(self) -> None:
        self._replay.toggle()

    def action_faster(self) -> None:
        self._replay.change_speed(1)

    def action_slower(self) -> None:
        self._replay.change_speed(-1)
