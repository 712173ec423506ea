"""Defines the user's requests, which screens post and the session carries out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from hetero_tui.state import RunView, State

if TYPE_CHECKING:
    from hetero_tui.outcomes import BootstrapReport, CheckReport
    from remote_agent import protocol


@dataclass(frozen=True, kw_only=True)
class HostItem:
    """Something of ours on a host: ``kind`` is process, folder, port, network, environment or host (not reached)."""

    host: str
    kind: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class TeardownReport:
    """What a teardown ended or removed, and what it could not.

    ``unseen`` are hosts that did not answer, where nothing was ever done.
    """

    removed: tuple[HostItem, ...] = ()
    leftovers: tuple[HostItem, ...] = ()
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """One line that a process of a run logged or printed on a host."""

    host: str
    line: protocol.LogLine


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

    async def install(self, extras: Sequence[str], *, from_laptop: bool) -> BootstrapReport:
        """Give every host that lacks one an environment with ``extras`` besides; the state tells how it goes on."""

    async def look_for_problems(self, *, mends: bool) -> CheckReport:
        """Look for all that may keep hosts from training well; ``mends``: environments of ours that do not work."""

    def mistakes_in(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> tuple[str, ...]:
        """What is wrong with an order for :meth:`train`, as far as it shows before anything starts."""

    async def train(self, job: str, settings: Mapping[str, str], paths: Sequence[str] = ()) -> str:
        """Start a run (bringing the cluster up first where it is down) and follow it; the answer is its name.

        ``paths`` are sent along with the job's file.
        """

    async def stop_run(self, run: str | None = None) -> None:
        """Ask a run (None: the one on the screen) to stop after its step, with a checkpoint."""

    async def resume(self, run: str | None = None) -> str:
        """Let a run (None: the one on the screen, or else the newest) go on from its newest checkpoint; follow it."""

    async def drain(self, host: str) -> object:
        """Have ``host`` leave the run that is under way after its step, with nothing lost."""

    async def bring_back(self, host: str) -> object:
        """Have ``host`` take part again, at once: drained, paused after failures, or back after an absence."""

    async def list_runs(self) -> None:
        """Ask every host which runs it has; the state has them then."""

    async def read_run(self, run: str) -> RunView:
        """A run as its own events tell it, from its first to its last."""

    def logs(self, run: str | None, host: str) -> AsyncGenerator[LoggedLine]:
        """What a run's processes (None: the newest run's) log, from the first line on, as long as it goes on.

        ``host``: only of this one; empty: of all.
        """

    def shell_command(self, host: str) -> tuple[str, ...]:
        """The command that opens a shell on ``host`` in a terminal."""

    async def save(self, name: str, text: str) -> str:
        """Write a text to a new file of about that name, where the app was started; the answer is its path."""

    def accept_host_key(self, host: str, fingerprint: str | None = None) -> None:
        """Trust the key that ``host`` offered, from now on; with ``fingerprint`` only if it is still that one."""

    def teardown_preview(self) -> TeardownPreview:
        """What :meth:`down` would do now."""

    async def down(self) -> TeardownReport:
        """Stop everything on every host and prove that nothing is left."""

    async def close(self) -> None:
        """Detach: connections close, whatever runs goes on."""


class Refusing(ABC):
    """What of :class:`Intents` needs the live session, for what stands in its place: all of it is refused."""

    @abstractmethod
    def _refuse(self) -> NoReturn:
        """Raise a UsageError that says why."""

    def _refused(self, *_: object, **__: object) -> NoReturn:
        self._refuse()

    probe = up = down = install = look_for_problems = mistakes_in = _refused
    train = stop_run = resume = drain = bring_back = list_runs = read_run = logs = _refused
    shell_command = save = accept_host_key = teardown_preview = _refused
