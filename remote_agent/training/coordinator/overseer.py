"""Carries the coordinator out in a child process, and again in a new one if a signal ends it.

The overseer loads what a coordinator needs and then only waits: where the system can fork, the next child is there at
once, while loading torch and Ray takes seconds. The process of the run that others know is the overseer: it hands
SIGTERM and SIGINT on, and a child whose overseer is gone ends.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkProcess, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from remote_agent.log_lines import stamp

Coordinate = Callable[[Path, threading.Event], int]
"""Carries out the run in a folder until it ends, or the event is set; returns the exit code."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

FORKS = sys.platform == "linux"
"""Whether children are forks. macOS's own libraries do not stand that; there they load everything anew."""


def kind_of_process(forks: bool = FORKS) -> type[BaseProcess]:
    """The class of a child process."""
    return ForkProcess if forks else SpawnProcess


class Overseer:
    """Oversees one run.

    Args:
        coordinate: a function that a new process can import.
        may_go_on: whether another child may follow one that was killed; asked then.
        forks: whether a child is a fork.
    """

    def __init__(
        self,
        coordinate: Coordinate,
        folder: Path,
        may_go_on: Callable[[], bool],
        *,
        forks: bool = FORKS,
    ) -> None:
        self._coordinate, self._folder, self._may_go_on = coordinate, folder, may_go_on
        self._process = kind_of_process(forks)
        self._stopped = False
        self._child: BaseProcess | None = None
        for number in SIGNALS:
            signal.signal(number, self._hand_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see remote_agent.coordinate

    def oversee(self) -> int:
        """Returns the exit code of the last child; 1 for one that was killed."""
        gc.freeze()  # the children share these pages: a collection would write to them
        while True:
            child = self._start()
            child.join()
            code = child.exitcode
            if code is not None and code >= 0:
                return code
            if self._stopped or not self._may_go_on():
                return 1
            said = f"{stamp(time.time())} the coordinator was ended by signal {-(code or 0)}: a new one begins"
            print(said, file=sys.stderr, flush=True)

    def _start(self) -> BaseProcess:
        with _signals_wait():
            self._child = self._process(target=_carry_out, args=(self._coordinate, self._folder, self._stopped))
            self._child.start()
        return self._child

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        if self._child is not None:
            self._child.terminate()


def stop_on_signals(stop: threading.Event) -> None:
    """From now on SIGTERM and SIGINT set ``stop``."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: stop.set())


def child_of(coordinate: Coordinate, folder: Path) -> BaseProcess:
    """A started child of this process that carries out the run in ``folder``, once."""
    with _signals_wait():
        child = kind_of_process()(target=_carry_out, args=(coordinate, folder, False))
        child.start()
    return child


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """A signal between the fork and the child's own handlers would be lost: it waits until they are there."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _carry_out(coordinate: Coordinate, folder: Path, stopped: bool) -> None:
    """The child. Never returns."""
    stop = threading.Event()
    if stopped:
        stop.set()
    stop_on_signals(stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with_parent, name="overseer", daemon=True).start()
    code = 1
    try:
        code = coordinate(folder, stop)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Ray's threads have nothing left to do, and must not turn a finished run into a crash at exit.
        os._exit(code)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is the child"
    parent.join()
    os._exit(1)
