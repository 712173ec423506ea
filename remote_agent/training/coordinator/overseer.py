"""Runs the coordinator in a child process, and starts a new child if a signal kills or stops it.

The overseer imports torch and Ray, which takes seconds, and then only waits. On systems with fork the next child is
ready at once. Other processes know the run by the overseer's PID: it passes SIGTERM and SIGINT on, and a child ends
when its overseer is gone. A stopped child is killed before the next one starts, so there are never two coordinators.
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
from typing import NoReturn

from remote_agent.host.process_table import is_stopped
from remote_agent.log_lines import stamp

Coordinate = Callable[[Path, threading.Event], int]
"""A function that carries out the run in a folder until it ends or the event is set; returns the exit code."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

FORKS = sys.platform == "linux"
"""Whether children are forks. The system libraries of macOS do not support that; there children import everything."""

LOOK_S = 1.0
"""Seconds between two checks whether a child is stopped."""

STOPPED_LOOKS = 5
"""A child is replaced after so many checks in a row that find it stopped. They are counted instead of timed, since a
computer that sleeps stops the overseer, too."""


def kind_of_process(forks: bool = FORKS) -> type[BaseProcess]:
    """The class of a child process."""
    return ForkProcess if forks else SpawnProcess


class Overseer:
    """Oversees one run.

    Args:
        coordinate: a function that a new process can import.
        may_go_on: called after a child was killed; says whether another may follow.
        report_lost: called before another one follows.
    """

    def __init__(
        self,
        coordinate: Coordinate,
        folder: Path,
        may_go_on: Callable[[], bool],
        report_lost: Callable[[], None],
        *,
        forks: bool = FORKS,
    ) -> None:
        self._coordinate, self._folder = coordinate, folder
        self._may_go_on, self._report_lost = may_go_on, report_lost
        self._process = kind_of_process(forks)
        self._stopped = False
        self._child: BaseProcess | None = None
        for number in SIGNALS:
            signal.signal(number, self._hand_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see remote_agent.coordinate

    def oversee(self) -> int:
        """Run children until one ends by itself; returns the last child's exit code, 1 if it was killed."""
        gc.freeze()  # children share these pages, and a collection would write to them
        while True:
            child = self._start()
            was_stopped = self._await_end(child)
            code = child.exitcode
            if code is not None and code >= 0:
                return code
            # A child that was stopped could not obey the user's request to end the run; the next one does.
            if (self._stopped and not was_stopped) or not self._may_go_on():
                return 1
            self._report_lost()
            what = "was stopped, and is killed" if was_stopped else f"was ended by signal {-(code or 0)}"
            print(f"{stamp(time.time())} the coordinator {what}: a new one begins", file=sys.stderr, flush=True)

    def _await_end(self, child: BaseProcess) -> bool:
        """Wait for a child's end; returns whether it was killed here because it was stopped."""
        looks = 0
        while True:
            child.join(LOOK_S)
            if child.exitcode is not None:
                return False
            looks = looks + 1 if is_stopped(child.pid or 0) else 0
            if looks >= STOPPED_LOOKS:
                child.kill()
                child.join()
                return True

    def _start(self) -> BaseProcess:
        with _signals_wait():
            self._child = self._process(target=_carry_out, args=(self._coordinate, self._folder, self._stopped))
            self._child.start()
        return self._child

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        if self._child is not None:
            self._child.terminate()


def leave(code: int) -> NoReturn:
    """End this process at once: nothing is left to be done, and to unload torch takes a second or two."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def stop_on_signals(stop: threading.Event) -> None:
    """Let SIGTERM and SIGINT set ``stop`` from now on."""
    for number in SIGNALS:
        signal.signal(number, lambda *_: stop.set())


def child_of(coordinate: Coordinate, folder: Path) -> BaseProcess:
    """Start a child of this process that carries out the run in ``folder`` once."""
    with _signals_wait():
        child = kind_of_process()(target=_carry_out, args=(coordinate, folder, False))
        child.start()
    return child


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Block signals until the child has its own handlers, since a signal before that would be lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _carry_out(coordinate: Coordinate, folder: Path, stopped: bool) -> None:
    """Be the child; never returns."""
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
        leave(code)  # Ray's threads must not turn a finished run into a crash at exit


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is the child"
    parent.join()
    os._exit(1)
