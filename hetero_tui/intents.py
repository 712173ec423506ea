"""What a user can ask for: the seam between the screens, which post them, and the session, which carries them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hetero_tui.state import State


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """Something of ours that a teardown could not remove: ``kind`` is process, folder, port or host (not reached)."""

    host: str
    kind: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Removed:
    """Something that a teardown ended or removed."""

    host: str
    kind: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class TeardownReport:
    """What a teardown did, and what is left."""

    removed: tuple[Removed, ...] = ()
    leftovers: tuple[Leftover, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TeardownPreview:
    """What a teardown would do, for the question before it. ``running`` names the live run and its step, or is ""."""

    cluster: str
    running: str
    stops: tuple[str, ...]
    unreachable: tuple[str, ...]


class Intents(Protocol):
    """The live session as the screens see it. Every method reports through the state and raises only HeteroTuiError."""

    @property
    def state(self) -> State:
        """What is known now."""

    @property
    def jobs(self) -> tuple[str, ...]:
        """The ready-made jobs' names."""

    @property
    def inventory_path(self) -> str:
        """Where the inventory is, for people."""

    @property
    def busy(self) -> str:
        """The operation under way ("probing", "starting", "stopping"), or ""."""

    def subscribe(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Have ``listener`` called on the event loop after each change; the answer ends it."""

    async def probe(self) -> None:
        """Probe all hosts at once; then live use is followed for as long as the session lives."""

    async def up(self) -> None:
        """Start the cluster on every fit host. Starting what runs changes nothing."""

    def mistakes_in(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> tuple[str, ...]:
        """What is wrong with an order for :meth:`train`, as far as it shows before anything starts."""

    async def train(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> str:
        """Start a run (bringing the cluster up first where it is down) and follow it; the answer is its name.

        ``paths`` are sent along with the job's file.
        """

    async def stop_run(self) -> None:
        """Ask the run on the screen to stop after its step, with a checkpoint."""

    async def resume(self) -> str:
        """Let the run on the screen, or else the newest, go on from its newest checkpoint, and follow it."""

    def accept_host_key(self, host: str) -> None:
        """Trust the key that ``host`` offered, from now on."""

    def teardown_preview(self) -> TeardownPreview:
        """What :meth:`down` would do now."""

    async def down(self) -> TeardownReport:
        """Stop everything on every host and prove that nothing is left."""

    async def close(self) -> None:
        """Detach: connections close, whatever runs goes on."""
