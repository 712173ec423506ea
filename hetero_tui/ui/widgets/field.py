"""A line that is typed into."""

from __future__ import annotations

from textual.events import Key
from textual.widget import Widget
from textual.widgets import Input


class Field(Input):
    """Takes keys in the order in which they come.

    Textual carries out what a key is bound to (enter, backspace, the arrows) after letters that come close behind it:
    over a slow connection a correction would land behind the text that is typed after it, and an arrow that chooses
    another text for the field would replace what is typed after it.
    """

    async def _on_key(self, event: Key) -> None:
        await super()._on_key(event)
        owners = [self] if event.is_printable else self.ancestors_with_self
        for owner in (each for each in owners if isinstance(each, Widget)):
            for binding in owner._bindings.key_to_bindings.get(event.key, ()):  # noqa: SLF001 - Textual has no other way
                if await self.app.run_action(binding.action, owner):
                    event.stop()
                    event.prevent_default()
                    return
