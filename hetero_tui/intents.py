"""Defines what the session tells the screens of a teardown and of logs, and what stands in a live session's place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from hetero_tui.errors import UsageError
from hetero_tui.events import HostState, Level
from hetero_tui.state import State
from remote_agent.states import RunState, stands_at

if TYPE_CHECKING:
    from remote_agent import protocol


STARTING, ADDING, TRAINING, RESUMING = "starting", "adding hosts", "starting a run", "resuming"
"""Of a cluster, of hosts in one that is there already, and of a run, which brings a cluster up that is down."""

PLANNING = "planning"
"""Devices and links are measured, for which a cluster is brought up."""

ASKING, PROBING = "asking hosts", "probing"
"""Of what only looks: how the hosts stand, and what they are."""

_FINISHED_BY = {
    "stopping": "`hetero-tui down` finishes it",
    STARTING: "`hetero-tui up` finishes it, `hetero-tui down` undoes it",
    ADDING: "`hetero-tui up` finishes it",
    TRAINING: "`hetero-tui train` starts it anew, `hetero-tui down` takes down what came of it",
    "installing": "`hetero-tui bootstrap` finishes it",
    "mending": "`hetero-tui check --fix` finishes it",
    PLANNING: "`hetero-tui plan` starts it anew; a cluster that it brought up stays, and `hetero-tui down` ends it",
    RESUMING: "`hetero-tui resume` finishes it",
    "failing over": "`hetero-tui resume` finishes it",
    "ending the run": "`hetero-tui stop` finishes it",
    "draining": "`hetero-tui drain` finishes it",
    "bringing back": "`hetero-tui undrain` finishes it",
}


def half_way(word: str) -> str:
    """What is said of the operation of that word where it is cut off; empty where nothing is left half-done."""
    return f"interrupted while {word}: {_FINISHED_BY[word]}" if word in _FINISHED_BY else ""


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


def call_for(before: State, after: State) -> tuple[Level, str] | None:
    """What has happened between two states that a user who looks elsewhere should know, in a sentence; None: nothing.

    A run whose end was not seen, such as one that was over when the app was opened, is no news.
    """
    was, run = before.run, after.run
    if run is not None and was is not None and was.run == run.run and run.state.final and not was.state.final:
        cause = f": {run.detail}" if run.detail else ""
        level = Level.BAD if run.state in (RunState.FAILED, RunState.LOST) else Level.GOOD
        return level, f"{run.run} {run.state} {stands_at(run.state, run.step)}{cause}"
    for host in after.hosts:
        if host.state is not HostState.REFUSED:
            continue
        known = before.host(host.name)
        was_well = known is not None and known.last_seen is not None and known.state is not HostState.REFUSED
        if was_well:
            return Level.BAD, f"{host.name} needs a hand: {host.detail}"
    return None


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
