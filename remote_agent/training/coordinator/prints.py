"""Brings the workers' prints to a script's stderr; on the fleet each process has a log instead (``log_file``).

Each worker is asked twice a second, beside its steps. A worker may print :data:`AT_ONCE` lines at once and
:data:`PER_S` a second after that. Further lines are dropped and counted, so that a print for each sample does not flood
the terminal or delay training. The log of Ray's process on the worker's host has all lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from remote_agent.training.deadlines import CLOSE_S, LAST_PRINTS_S, PRINTS_S
from remote_agent.training.shared import rpc
from remote_agent.training.shared.messages import PING
from remote_agent.training.shared.output import Printed
from remote_agent.training.shared.rpc import Actor, Ref

AT_ONCE, PER_S = 50.0, 5.0
"""Number of lines of one worker that are shown at once, and then each second."""

TELL_S = 5.0
"""Seconds between two notes about dropped lines."""

Show = Callable[[str, tuple[str, ...], int], None]
"""A function that shows a worker's name, its lines, and the number of dropped lines."""


@dataclass
class Allowance:
    """The number of lines of a worker that may be shown. Pure.

    Attributes:
        lines: number of lines that may be shown now.
        at: time of this value, on the monotonic clock, in seconds.
        left_out: number of dropped lines without a note so far.
    """

    at: float
    lines: float = AT_ONCE
    left_out: int = 0
    told: float = -TELL_S

    def take(self, printed: Printed, now: float, last: bool = False) -> tuple[tuple[str, ...], int]:
        """The lines to show, and the number of dropped lines to report; ``last``: nothing follows."""
        self.lines, self.at = min(AT_ONCE, self.lines + PER_S * (now - self.at)), now
        shown = printed.lines[: int(self.lines)]
        self.lines -= len(shown)
        self.left_out += len(printed.lines) - len(shown) + printed.left_out
        if not self.left_out or not (last or now - self.told >= TELL_S):
            return shown, 0
        told, self.left_out, self.told = self.left_out, 0, now
        return shown, told


class Prints:
    """Fetches the workers' prints in a thread until it is closed."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._workers: dict[Actor, str] = {}
        self._asked: dict[Actor, Ref[Printed]] = {}
        self._allowed: dict[str, Allowance] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prints", daemon=True)
        self._thread.start()

    def watch(self, name: str, actor: Actor) -> None:
        with self._lock:
            self._workers[actor] = name

    def forget(self, actor: Actor) -> None:
        with self._lock:
            self._workers.pop(actor, None)

    def flush(self) -> None:
        """Show the last lines of workers that are about to end."""
        with self._asking:
            self._round(LAST_PRINTS_S, last=True)
            with self._lock:
                self._workers.clear()

    def close(self) -> None:
        """Show the last lines, and end the thread."""
        self._stop.set()
        self._thread.join(CLOSE_S)
        self.flush()

    def _run(self) -> None:
        while not self._stop.wait(PRINTS_S):
            with self._asking:
                self._round(0.0)

    def _round(self, seconds: float, last: bool = False) -> None:
        with self._lock:
            workers = dict(self._workers)
        try:
            for actor in workers:
                if actor not in self._asked:
                    self._asked[actor] = actor.call_in(PING, "printed")
            self._asked = {actor: ref for actor, ref in self._asked.items() if actor in workers}
            if self._asked and last:
                rpc.wait_all(list(self._asked.values()), seconds)
            for actor, ref in list(self._asked.items()):
                if rpc.first_ready([ref], 0.0) is not None:
                    del self._asked[actor]
                    self._take(workers[actor], self._answer(actor, ref), last)
        except rpc.Unexpected:
            return  # Ray's head is away: the next round will tell

    def _answer(self, actor: Actor, ref: Ref[Printed]) -> Printed:
        try:
            return rpc.get(ref, 0.0)
        except rpc.NoAnswer as error:
            if rpc.gone(error):
                self.forget(actor)
            return Printed()

    def _take(self, name: str, printed: Printed, last: bool) -> None:
        now = time.monotonic()
        lines, left_out = self._allowed.setdefault(name, Allowance(now)).take(printed, now, last)
        if lines or left_out:
            self._show(name, lines, left_out)


def output_lines(worker: str, lines: tuple[str, ...], left_out: int) -> list[str]:
    """Format lines for people: ``[nas/cpu] epoch 3``."""
    shown = [f"[{worker}] {line}" for line in lines]
    return [*shown, f"[{worker}] ({left_out:,} lines left out; its host's Ray log has them)"] if left_out else shown


def to_stderr(worker: str, lines: tuple[str, ...], left_out: int) -> None:
    """Show lines on stderr, for a script without a progress line."""
    for line in output_lines(worker, lines, left_out):
        print(line, file=sys.stderr)
