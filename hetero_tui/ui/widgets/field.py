"""A line that is typed into."""

from __future__ import annotations

from textual.events import Key
from textual.widgets import Input


class Field(Input):
    """Enter takes what was typed before it: as a binding it would be carried out after keys that come close behind."""

    async def _on_key(self, event: Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            await self.action_submit()
        else:
            await super()._on_key(event)
