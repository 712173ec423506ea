"""Coordinators that start at once: forks of one process that has loaded torch, Ray and the engine, which takes seconds.

A fork becomes ``python -m remote_agent.training.coordinator.main FOLDER`` in all but the loading; the tests of the lab,
of the demo and of the command line start the command itself.

``python -m tests.training.coordinators SOCKET`` is the process that forks. A connection to its socket is one run:
a line with the run's folder and the file for stderr goes there, the coordinator's PID and its exit code come back.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

READY_S = 120.0
"""Until torch and Ray must have been loaded."""


class Coordinator:
    """One of them, with the part of :class:`subprocess.Popen` that tests use."""

    def __init__(self, where: Path, folder: Path) -> None:
        self._errors = folder.with_name(f"{folder.name}.stderr")
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(where))
        self._connection.sendall(json.dumps([str(folder), str(self._errors)]).encode() + b"\n")
        self._answers = self._connection.makefile("rb")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal's number; None while it runs."""
        return self._wait(0.0)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; what it wrote to stdout (nothing) and to stderr.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired(f"the coordinator {self.pid}", timeout or 0.0)
        return "", self._errors.read_text()

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], seconds)[0]:
            self.returncode = int(self._answers.readline() or -signal.SIGKILL)  # nothing: who watched it was killed
            self._connection.close()
        return self.returncode


class Coordinators:
    """Starts them; a context manager.

    Args:
        folder: for the socket; its path is short.
        environment: theirs.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._where, self._environment = folder / "coordinators", environment

    def __enter__(self) -> Coordinators:
        command = [sys.executable, "-m", "tests.training.coordinators", str(self._where)]
        # In a session of its own, as the cluster: what interrupts the tests leaves it to them to end it.
        self._process = subprocess.Popen(command, env=self._environment, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def start(self, folder: Path) -> Coordinator:
        """A coordinator for the run in ``folder``."""
        end = time.monotonic() + READY_S
        while not self._where.exists():
            assert self._process.poll() is None, "the engine can't be loaded"
            assert time.monotonic() < end
            time.sleep(0.02)
        return Coordinator(self._where, folder)


# --- The process that forks ------------------------------------------------------------------------------------------


def main(where: Path) -> None:
    """Fork for each connection, until stdin ends: then whoever started this is gone."""
    # What run.main() imports when it is called.
    from remote_agent.training import job  # noqa: F401
    from remote_agent.training.coordinator import cluster, engine, history  # noqa: F401
    from remote_agent.training.coordinator.processes import actors  # noqa: F401

    gc.freeze()  # the forks share these pages: a collection would write to them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    draft = where.with_name("starting")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(draft))
        listening.listen()
        draft.rename(where)  # it answers
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _watch(connection)
            connection.close()


def _watch(connection: socket.socket) -> None:
    """Fork the coordinator and tell of its end. Never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    folder, errors = json.loads(connection.makefile("rb").readline())
    pid = os.fork()
    if pid == 0:
        connection.close()
        _coordinate(folder, errors)
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _coordinate(folder: str, errors: str) -> None:
    """Become what the command is. Never returns."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.chdir(folder)
    sys.argv = ["run", folder]
    runpy.run_module("remote_agent.training.coordinator.main", run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
