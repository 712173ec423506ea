"""Defines what the session tells the screens of a teardown and of logs, and what stands in a live session's place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from hetero_tui.state import State

if TYPE_CHECKING:
    from remote_agent import protocol


RUNS, AGENT = "runs", "agent"
"""The kinds of a folder with runs, which no teardown removes, and of what reads them."""


@dataclass(frozen=True, kw_only=True)
class HostItem:
    """Something of ours on a host: ``kind`` is process, folder, port, network, environment or host (not reached).

    Of what is kept also runs, agent or measurements. A single file is a folder, too.
    """

    host: str
    kind: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class TeardownReport:
    """What a teardown ended or removed, what it could not, and what it ``kept``: files, as they are meant to stay.

    ``unseen`` are hosts that did not answer, where nothing was ever done.
    """

    removed: tuple[HostItem, ...] = ()
    leftovers: tuple[HostItem, ...] = ()
    unseen: tuple[str, ...] = ()
    kept: tuple[HostItem, ...] = ()

    @property
    def kept_words(self) -> tuple[str, ...]:
        """What is kept, a sentence for all hosts that keep the same, and how it is removed; empty: nothing is kept."""
        by_host: dict[str, list[str]] = {}
        for item in self.kept:
            by_host.setdefault(item.host, []).append(item.kind)
        alike: dict[str, list[str]] = {}
        for host, kinds in by_host.items():
            if AGENT not in kinds:  # it is what reads them
                kinds = [f"{kind} (listed again after the next `up`)" if kind == RUNS else kind for kind in kinds]
            alike.setdefault(", ".join(dict.fromkeys(kinds)), []).append(host)
        said = [f"kept on {', '.join(hosts)}: {kinds}" for kinds, hosts in alike.items()]
        if not said:
            return ()
        folder, found = self.kept[0].detail.rpartition("/")[0], {item.kind for item in self.kept}
        ways = ["`hetero-tui down --purge` removes all but the runs"] if found - {RUNS, "folder"} else []
        if found & {RUNS, "folder"}:
            ways.append(f"`rm -r {folder}` on a host removes {'its runs, too' if RUNS in found else 'the rest'}")
        return (*said, *ways)


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """One line that a process of a run logged or printed on a host."""

    host: str
    line: protocol.LogLine


@dataclass(frozen=True, kw_only=True)
class TeardownPreview:
    """What a teardown would do, for the question before it. ``running`` names the live runs, or is ""."""

    cluster: str
    running: str
    stops: tuple[str, ...]
    unreachable: tuple[str, ...]


class Refusing(ABC):
    """The requests of the screens that need a live session, for what stands in its place: all of them are refused.

    :class:`~hetero_tui.app_session.AppSession` carries them out. The type checker finds one that is missing here.
    """

    jobs: tuple[str, ...]
    inventory_path: str

    @property
    @abstractmethod
    def state(self) -> State:
        """What is shown."""

    @property
    @abstractmethod
    def busy(self) -> str:
        """What is under way, in words."""

    @abstractmethod
    def subscribe(self, listener: Callable[[State], None]) -> Callable[[], None]:
        """Call ``listener`` after each change; returns a function that ends this."""

    @abstractmethod
    async def close(self) -> None:
        """End what it has begun."""

    @abstractmethod
    def _refuse(self) -> NoReturn:
        """Raise a UsageError that says why."""

    def _refused(self, *_: object, **__: object) -> NoReturn:
        self._refuse()

    probe = up = down = install = look_for_problems = mistakes_in = _refused
    train = stop_run = resume = drain = bring_back = list_runs = read_run = logs = _refused
    shell_command = save = accept_host_key = teardown_preview = _refused
