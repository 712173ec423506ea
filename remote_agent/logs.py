"""Prints what the processes of a run logged on this machine, by time: ``python -m remote_agent.logs --run RUN ...``.

One :class:`~remote_agent.protocol.LogLine` a line: of the run's own processes here (``runs/RUN/*.log``: coordinator,
workers, servers; the older half of a log is in ``*.log.1``), of the supervisor, and the errors of Ray's raylet and
control store. The last two serve all runs of this machine, so theirs are those from ``--since`` to ``--until``. A
machine that has no log of the run had no part in it, and prints nothing.

With ``--follow`` an empty line follows what is there now, and then new lines as they are written, until the run's
coordinator ends (``--process-name``, on its own machine), or the reader goes. Further empty lines are heartbeats.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from remote_agent import deadlines
from remote_agent.host import layout, processes, ray_command
from remote_agent.log_lines import rays_errors, stamped
from remote_agent.protocol import LogLine, encode
from remote_agent.stream import LineStream, StreamClosed

MAX_BYTES = 8 << 20
"""Of the end of a log that are read: Ray's own are large in a cluster that is up for months."""

MAX_LENGTH = 20_000
"""Characters of a line that are handed on: what a process writes past Python's own streams may have no end."""

_AT_ONCE = 1000
"""Lines that are handed on at a time."""

_RAYS = ("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err")

Read = Callable[[Iterable[str], float | None, float], Iterator[tuple[float, str]]]
"""(time, text) of those of a log's lines that are shown; see :func:`~remote_agent.log_lines.stamped`."""


@dataclass(frozen=True)
class Log:
    """A log file: of which process, how its lines are read, and whether it is the run's own."""

    path: Path
    process: str
    read: Read
    own: bool = True


def logs_of(folder: Path, run: str) -> list[Log]:
    """The logs on this machine that say something about a run; none where it has no log itself."""
    own = sorted((folder / "runs" / run).glob("*.log"))
    if not own:
        return []
    rays = ray_command.ray_folder(folder) / "session_latest" / "logs"
    return [
        *(Log(path, path.name.removesuffix(".log"), stamped) for path in own),
        Log(layout.supervisor_log_path(folder), layout.SUPERVISOR, stamped, own=False),
        *(Log(rays / name, Path(name).stem, rays_errors, own=False) for name in _RAYS),
    ]


class Tail:
    """Reads a log from its beginning on, each time what is new, also across its rotation."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._file: int | None = None  # the inode
        self._offset, self._rest = 0, b""
        self._before: float | None = None  # the time of the last line

    def lines(self) -> Iterator[LogLine]:
        """Those that were added since this was called before; none of a log that is not there."""
        former = self._log.path.with_name(f"{self._log.path.name}.1")
        for path in (former, self._log.path):
            if not path.is_file():  # reading a pipe would wait without end
                continue
            with contextlib.suppress(OSError), path.open("rb") as file:
                status = os.fstat(file.fileno())
                # The former file is read to its end if it is the one that was read; and at first.
                if path == former and self._file not in (None, status.st_ino):
                    continue
                if self._file != status.st_ino:
                    self._file, self._offset, self._rest = status.st_ino, max(0, status.st_size - MAX_BYTES), b""
                    file.seek(self._offset)
                    self._offset += len(file.readline()) if self._offset else 0
                file.seek(self._offset)
                *whole, self._rest = (self._rest + file.read()).split(b"\n")
                self._offset = file.tell()
                lines = (line.decode("utf-8", "replace") for line in whole)
                for moment, text in self._log.read(lines, self._before, status.st_mtime):
                    self._before = moment
                    yield LogLine(time=moment, process=self._log.process, line=text[:MAX_LENGTH])


class Reader:
    """Reads all logs of a run on this machine, those too that begin later.

    Args:
        folder: the cluster's.
        since, until: seconds since the epoch, for logs that are not the run's own.
    """

    def __init__(self, folder: Path, run: str, since: float, until: float) -> None:
        self._folder, self._run, self._since, self._until = folder, run, since, until
        self._tails: dict[Path, tuple[Log, Tail]] = {}

    def new(self) -> Iterator[LogLine]:
        """What is new in them, by time."""
        for log in logs_of(self._folder, self._run):
            self._tails.setdefault(log.path, (log, Tail(log)))
        return heapq.merge(*(self._shown(log, tail) for log, tail in self._tails.values()), key=attrgetter("time"))

    def _shown(self, log: Log, tail: Tail) -> Iterator[LogLine]:
        return (line for line in tail.lines() if log.own or self._since <= line.time <= self._until)


def show(reader: Reader, *, follow: bool, alive: Callable[[], bool]) -> None:
    """Print what is there, with ``follow`` also what comes while ``alive``; raises StreamClosed if the reader goes."""
    stream = LineStream()
    _write(stream, reader)
    if not follow:
        return
    stream.write([b"\n"])
    while True:
        # In this order: what a process logged before it ended is there once it is seen to have ended.
        goes_on = alive()
        _write(stream, reader)
        if not goes_on:
            return
        stream.heartbeat(deadlines.HEARTBEAT_SECONDS)
        stream.wait(deadlines.FOLLOW_POLL_SECONDS)


def _write(stream: LineStream, reader: Reader) -> None:
    waiting: list[bytes] = []
    for line in reader.new():
        waiting.append(encode(line).encode() + b"\n")
        if len(waiting) >= _AT_ONCE:
            stream.write(waiting)
            waiting.clear()
    if waiting:
        stream.write(waiting)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m remote_agent.logs", description="Print a run's logs.")
    parser.add_argument("--folder", required=True, type=processes.absolute_path)
    parser.add_argument("--run", required=True)
    parser.add_argument("--since", type=float, default=0.0)
    parser.add_argument("--until", type=float, default=float("inf"))
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--process-name", help="with --follow: ends when this process of ours does")
    options = parser.parse_args(arguments)
    reader = Reader(options.folder, options.run, options.since, options.until)

    def alive() -> bool:
        name = options.process_name
        return name is None or processes.find_named(options.folder, name) is not None

    with contextlib.suppress(StreamClosed):
        show(reader, follow=options.follow, alive=alive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
