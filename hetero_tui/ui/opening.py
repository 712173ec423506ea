"""Stands in for the session while it is being opened, so that the first frame does not wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from hetero_tui.errors import UsageError
from hetero_tui.intents import Refusing
from hetero_tui.state import State

BUSY = "opening"


class Opening(Refusing):
    """A session that is still being opened and knows nothing; the screens ask nothing of it meanwhile."""

    state = State(cluster="")
    jobs: tuple[str, ...] = ()
    inventory_path = ""
    busy = BUSY

    def subscribe(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Nothing changes here, so ``listener`` is never called."""
        return lambda: None

    async def close(self) -> None:
        """There is nothing to close."""

    def _refuse(self) -> NoReturn:
        raise UsageError("the inventory is still being read", hint="wait a moment")
