"""Pings all workers and shards beside the steps, in a thread of the coordinator, to detect silent ones.

Ray notices an ended process at once, and a silent host only after its own health checks, which take much longer than a
run can wait. So each worker is pinged every :data:`~.deadlines.PULSE_S`, in a group of calls of its own: it answers
while it computes. So is each shard of the parameter server. Only the newest ping is under way: one that is not answered
stays, and its age is the silence.

How long a silence has to be follows from the answers before (Chen, Toueg and Aguilera 2002, "On the quality of service
of failure detectors"; Hayashibara et al. 2004): on a calm network it is half of what a busy computer is given.
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
from remote_agent.training.deadlines import CLOSE_S, PULSE_S, SILENT_FACTOR, SILENT_S, SILENT_SOONEST_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import PING, Failed, Pulse
from remote_agent.training.shared.rpc import Actor, Ref

MIN_WAITS, MAX_WAITS = 20, 200
"""Answers from which one can tell what is usual, and those that are remembered: the last minute's."""

MAX_LATE_ROUND = 3.0
"""A round that takes this many times :data:`~.deadlines.PULSE_S` shows that this process itself was held up."""


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What is known of one worker.

    Attributes:
        asked: when the newest ping that it answered was sent, on the monotonic clock; 0: none yet.
        pulse: what it answered.
        silent_s: how long the ping under way has not been answered.
        patience_s: how long that may be; see :func:`patience`.
        failed: a shard that can't go on says so.
        ended: why the process is known to have ended; empty: it is not.
    """

    asked: float = 0.0
    pulse: Pulse = field(default_factory=Pulse)
    silent_s: float = 0.0
    patience_s: float = SILENT_S
    failed: bool = False
    ended: str = ""

    @property
    def is_silent(self) -> bool:
        """Whether its host may be cut off."""
        return self.silent_s > self.patience_s


_UNKNOWN = Beat()


def patience(waits: Sequence[float]) -> float:
    """Seconds until a process is silent whose last answers were waited for so long, in seconds. Pure."""
    if len(waits) < MIN_WAITS:
        return SILENT_S
    return min(SILENT_S, max(SILENT_SOONEST_S, SILENT_FACTOR * max(waits)))


class Heartbeat:
    """Pings the actors that it is told to :meth:`watch`; a context manager."""

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
        """Ping these from now on, and no others; what is known of those that stay is kept."""
        with self._lock:
            self._beats = {actor: self._beats.get(actor, Beat()) for actor in actors}

    def of(self, actor: Actor) -> Beat:
        """What is known of an actor that is watched; raises where the pings have ended, and nothing is known."""
        self._pinging.check()
        with self._lock:
            return self._beats.get(actor, _UNKNOWN)

    def wait(self, seconds: float) -> None:
        """Until the next round of pings is over, at most so long."""
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
            watched = list(self._beats)
        for actor in watched:
            if actor not in self._asked and not self.of(actor).ended:
                self._asked[actor] = (time.monotonic(), actor.call_in(PING, "ping"))
        for actor in [actor for actor in self._asked if actor not in watched]:
            del self._asked[actor]
        self._waits = {actor: self._waits.get(actor, deque(maxlen=MAX_WAITS)) for actor in watched}

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
            except (*rpc.Lost, rpc.CallFailed, rpc.Timeout) as error:
                # Out of reach for now: the next ping will tell.
                beat = dataclasses.replace(known, ended=rpc.describe(error)) if rpc.gone(error) else known
            self._know(actor, beat)

    def _know(self, actor: Actor, beat: Beat) -> None:
        with self._lock:
            if actor in self._beats:
                self._beats[actor] = beat
