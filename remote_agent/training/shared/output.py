"""Sends this process's prints and logs to its log in the run's folder, or to the script that started the run.

The user's code prints and logs as anywhere, and all of it goes to the log that Ray gives each process on its host. In a
run of the fleet it also goes, with the time, to the process's log in the run's folder (``log_file``), and what the
engine logs goes there too. For a script the first lines of each moment are kept until the coordinator fetches them;
lines that there is no room for are counted, and no process waits.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_agent.training.shared.log_file import LogFile
from remote_agent.training.user_code.ownership import is_users_own
from remote_agent.training.user_code.user_errors import clean

MAX_KEPT = 100
"""Lines that wait to be fetched."""

MAX_LENGTH = 1000
"""Characters of a line that are kept."""

ENGINE = "remote_agent"
"""The logger above all of the engine's."""

_RAYS_OWN = (":job_id:", ":actor_name:", ":task_name:", "(raylet)")


@dataclass(frozen=True, kw_only=True)
class Printed:
    """Lines that a process printed since it was asked before, and how many more there were."""

    lines: tuple[str, ...] = ()
    left_out: int = 0


class Output:
    """Collects what is written to stdout and stderr once it is :meth:`installed <install>`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._log: LogFile | None = None

    def install(self, log: Path | None = None) -> None:
        """Collect from now on, and have ``logging`` write to stderr: the user's own from INFO, and all warnings.

        With a ``log`` it all goes there, and the engine's own decisions go there alone; a file that can't be opened is
        done without. Where stdout and stderr are that file, each line is in it once.
        """
        if log is not None:
            with contextlib.suppress(OSError):
                self._log = LogFile(log)
        sys.stdout, sys.stderr = (
            _Tee(stream, self, hands_on=self._log is None or not self._log.has(number))
            for number, stream in ((1, sys.stdout), (2, sys.stderr))
        )
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        handler.addFilter(lambda record: record.levelno >= logging.WARNING or is_users_own(record.pathname))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        if self._log is not None:
            own = _ToLog(self._log)
            own.setFormatter(handler.formatter)
            engine = logging.getLogger(ENGINE)
            engine.setLevel(logging.INFO)
            engine.addHandler(own)
            engine.propagate = False  # it would be there twice

    def add(self, line: str) -> None:
        if line.startswith(_RAYS_OWN):
            return
        if self._log is not None:
            self._log.write(clean(line[:MAX_LENGTH]))
            return
        with self._lock:
            if len(self._lines) >= MAX_KEPT:
                self._left_out += 1
            else:
                self._lines.append(clean(line[:MAX_LENGTH]))

    def take(self) -> Printed:
        """What was printed since this was called before."""
        with self._lock:
            taken = Printed(lines=tuple(self._lines), left_out=self._left_out)
            self._lines.clear()
            self._left_out = 0
        return taken


OUTPUT = Output()
"""This process's."""


class _ToLog(logging.Handler):
    """Writes records to a log, each of their lines with the time."""

    def __init__(self, log: LogFile) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).split("\n"):
            self._log.write(clean(line))


class _Tee:
    """A text stream that gives each line to ``output``, and ``hands_on`` what is written; all else is the stream's."""

    def __init__(self, stream: Any, output: Output, *, hands_on: bool) -> None:
        self._stream, self._output, self._rest, self._hands_on = stream, output, "", hands_on

    def write(self, text: str) -> int:
        if self._hands_on:
            self._stream.write(text)
        *whole, rest = (self._rest + text).split("\n")
        for line in whole:
            self._output.add(line.rstrip("\r").rpartition("\r")[2])  # a bar of progress writes over itself
        self._rest = rest.rpartition("\r")[2][:MAX_LENGTH]
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
