"""Pings all workers and shards beside the steps, in a thread of the coordinator, to detect silent ones.

Ray detects an ended process at once, but a silent host only after its own health checks, which take too long for a run.
So each worker and each shard is pinged every :data:`~.deadlines.PULSE_S`, in a concurrency group of its own, so that a
worker answers while it computes. There is one ping at a time; while it is not answered, its age is the silence.

The timeout follows from the earlier answers (Chen, Toueg and Aguilera 2002, "On the quality of service of failure
detectors"; Hayashibara et al. 2004): on a calm network it is half of the timeout on a busy computer.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

from remote_agent.training.coordinator.background import Background
from remote_agent.training.deadlines import CLOSE_S, PING_S, PULSE_S, SILENT_FACTOR, SILENT_S, SILENT_SOONEST_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import PING, Failed, Pulse
from remote_agent.training.shared.rpc import Actor, Ref

MIN_WAITS, MAX_WAITS = 20, 200
"""Least number of answers for a timeout, and number of remembered answers (those of the last minute)."""

MAX_LATE_ROUND = 3.0
"""If a round takes longer than this many times :data:`~.deadlines.PULSE_S`, this process itself was delayed."""


@dataclass(frozen=True, kw_only=True)
class Beat:
    """The heartbeat's state of one worker or shard.

    Attributes:
        asked: when the newest answered ping was sent, on the monotonic clock; 0: none yet.
        silent_s: age of the present ping without an answer.
        patience_s: the timeout; see :func:`patience`.
        failed: a shard reported that it can't continue.
        ended: the reason why the process has ended; empty: it has not, as far as is known.
    """

    asked: float = 0.0
    pulse: Pulse = field(default_factory=Pulse)
    silent_s: float = 0.0
    patience_s: float = SILENT_S
    failed: bool = False
    ended: str = ""

    @property
    def is_silent(self) -> bool:
        """Whether its host may be unreachable."""
        return self.silent_s > self.patience_s


_UNKNOWN = Beat()


def patience(waits: Sequence[float]) -> float:
    """The timeout in seconds, from the waiting times of the last answers. Pure."""
    if len(waits) < MIN_WAITS:
        return SILENT_S
    return min(SILENT_S, max(SILENT_SOONEST_S, SILENT_FACTOR * max(waits)))


class Heartbeat:
    """Pings the actors that were passed to :meth:`watch`; a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard = threading.Condition()
        self._beats: dict[Actor, Beat] = {}
        self._asked: dict[Actor, tuple[float, Ref[Pulse | Failed | None]]] = {}
        self._waits: dict[Actor, deque[float]] = {}
        self._stop = threading.Event()
        self._pinging = Background("heartbeat", self._run)

    def __enter__(self) -> Self:
        self._pinging.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pinging.join(CLOSE_S)

    def watch(self, actors: Collection[Actor]) -> None:
        """Ping only these actors from now on; the state of those that stay is kept."""
        with self._lock:
            self._beats = {actor: self._beats.get(actor, Beat()) for actor in actors}

    def of(self, actor: Actor) -> Beat:
        """The state of a watched actor; raises if the pings have ended."""
        self._pinging.check()
        with self._lock:
            return self._beats.get(actor, _UNKNOWN)

    def wait(self, seconds: float) -> None:
        """Wait until the next round of pings is over, up to a limit."""
        self._pinging.check()
        with self._heard:
            self._heard.wait(seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self._ask()
            self._hear(began)
            with self._heard:
                self._heard.notify_all()
            self._stop.wait(max(0.0, began + PULSE_S - time.monotonic()))

    def _ask(self) -> None:
        with self._lock:
            watched = dict(self._beats)
        for actor, beat in watched.items():
            if actor not in self._asked and not beat.ended:
                self._asked[actor] = (time.monotonic(), actor.call_in(PING, "ping"))
        for actor in [actor for actor in self._asked if actor not in watched]:
            del self._asked[actor]
        self._waits = {actor: self._waits.get(actor) or deque(maxlen=MAX_WAITS) for actor in watched}

    def _hear(self, began: float) -> None:
        asked = list(self._asked.items())
        answered = rpc.wait_all([ref for _, (_, ref) in asked], PULSE_S) if asked else set()
        now = time.monotonic()
        if now - began > MAX_LATE_ROUND * PULSE_S:
            # This process was stopped, or had no core: that it heard no answers says nothing about them.
            self._asked = {actor: (at + now - began, ref) for actor, (at, ref) in self._asked.items()}
        for number, (actor, (at, ref)) in enumerate(asked):
            known = self.of(actor)
            if number not in answered:
                self._know(actor, dataclasses.replace(known, silent_s=now - self._asked[actor][0]))
                continue
            waited = now - self._asked[actor][0]
            # Where another one's answer was waited for until now, it is not known when this one came.
            is_known = len(answered) == len(asked) or at < began
            if is_known and waited < SILENT_S:  # longer ones are faults, and not its habit
                self._waits[actor].append(waited)
            del self._asked[actor]
            try:
                answer = rpc.get(ref, PULSE_S)
                pulse = answer if isinstance(answer, Pulse) else Pulse()
                patience_s = patience(self._waits[actor])
                beat = Beat(asked=at, pulse=pulse, patience_s=patience_s, failed=isinstance(answer, Failed))
            except rpc.NoAnswer as error:
                # Out of reach for now: the next ping will tell.
                beat = dataclasses.replace(known, ended=rpc.describe(error)) if rpc.gone(error) else known
            self._know(actor, beat)

    def _know(self, actor: Actor, beat: Beat) -> None:
        with self._lock:
            if actor in self._beats:
                self._beats[actor] = beat


def pulse_of(actor: Actor) -> Pulse | None:
    """A living actor's answer to a ping, which a server fills with nothing; None: it does not answer in time."""
    try:
        answer = rpc.get(actor.call_in(PING, "ping"), PING_S)
    except rpc.NoAnswer:
        return None
    return answer if isinstance(answer, Pulse) else Pulse()
