"""What stands in for the session while it is being opened: the first frame does not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from hetero_tui.errors import UsageError
from hetero_tui.state import State

if TYPE_CHECKING:
    from hetero_tui.intents import TeardownPreview, TeardownReport

BUSY = "opening"


class Opening:
    """An :class:`~hetero_tui.intents.Intents` that knows nothing yet; the screens ask nothing of it meanwhile."""

    state = State(cluster="")
    jobs: tuple[str, ...] = ()
    inventory_path = ""
    busy = BUSY

    def subscribe(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Nothing changes here, so ``listener`` is never called."""
        return lambda: None

    async def probe(self) -> None:
        self._refuse()

    async def up(self) -> None:
        self._refuse()

    def mistakes_in(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> tuple[str, ...]:
        self._refuse()

    async def train(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> str:
        self._refuse()

    async def stop_run(self) -> None:
        self._refuse()

    async def resume(self) -> str:
        self._refuse()

    def accept_host_key(self, host: str) -> None:
        self._refuse()

    def teardown_preview(self) -> TeardownPreview:
        self._refuse()

    async def down(self) -> TeardownReport:
        self._refuse()

    async def close(self) -> None:
        """There is nothing to close."""

    def _refuse(self) -> NoReturn:
        raise UsageError("the inventory is still being read", hint="wait a moment")
