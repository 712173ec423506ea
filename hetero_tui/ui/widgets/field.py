"""A line that is typed into."""

from __future__ import annotations

from textual.events import Key
from textual.widgets import Input


class Field(Input):
    """Takes keys in the order in which they come.

    Textual carries out what a key is bound to (enter, backspace, the arrows) after letters that come close behind it:
    over a slow connection a correction would land behind the text that is typed after it.
    """

    async def _on_key(self, event: Key) -> None:
        await super()._on_key(event)
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            if await self.app.run_action(binding.action, self):
                event.stop()
                event.prevent_default()
                return
