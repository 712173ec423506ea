"""Prints a file's lines from a byte offset on, and new ones as they are written: how a laptop follows a run.

::

    python -m remote_agent.follow PATH --offset N [--process-folder F --process-name NAME]

Only complete lines are printed, so the reader's next offset is N plus the bytes of the lines it has. An empty line is a
heartbeat and no part of the file. It ends with 0 after a run's last event, or when the reader goes away, and otherwise
with one of the protocol's exit codes ``FOLLOW_...``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from remote_agent import deadlines
from remote_agent.host import processes
from remote_agent.protocol import FINAL_KINDS, FOLLOW_FILE_SHORTER, FOLLOW_NO_FILE, FOLLOW_PROCESS_GONE
from remote_agent.stream import LineStream, StreamClosed

LAST_STEPS = 50
"""Steps at the end of a run that are never left out: what the speed and the times of a step are taken from."""

_CHUNK = 1 << 20
_LINES = 1000
_HEAD = 100
"""Bytes of a line in which its kind stands, after its number and its time."""


def once(path: Path, offset: int, most_steps: int | None = None) -> int:
    """Print the lines that are there now, if the file is; returns the exit code.

    ``most_steps``: of the steps, print about so many, evenly spread, and the last ones; every other event is printed.
    """
    if not path.is_file():
        return 0
    with path.open("rb") as file, contextlib.suppress(StreamClosed):
        file.seek(offset)
        whole: Iterator[bytes] = (line for line in file if line.endswith(b"\n"))
        if most_steps is not None:
            steps = sum(is_step(line) for line in whole)
            file.seek(offset)
            whole = thinned((line for line in file if line.endswith(b"\n")), steps, most_steps)
        stream = LineStream()
        while lines := list(islice(whole, _LINES)):
            stream.write(lines)
    return 0


def thinned(lines: Iterable[bytes], steps: int, most: int) -> Iterator[bytes]:
    """The lines without most of the ``steps`` among them: the first, about ``most``, and the last ones stay."""
    every = max(1, -(-steps // max(1, most)))
    number = -1
    for line in lines:
        number += is_step(line)
        if not is_step(line) or number % every == 0 or number >= steps - LAST_STEPS:
            yield line


def is_step(line: bytes) -> bool:
    """Whether this line of a run's events, as :func:`~remote_agent.protocol.encode` writes them, is a step."""
    return b'"kind":"step",' in line[:_HEAD]


def follow(path: Path, offset: int, process: tuple[Path, str] | None = None) -> int:
    """Print lines until the file is complete; returns the exit code.

    Args:
        path: the file; it may not exist yet.
        offset: bytes to leave out.
        process: the cluster's folder and the name of the process that writes the file, when there is one to watch.
    """
    stream = LineStream()
    try:
        if not _await_file(path, process, stream):
            return FOLLOW_PROCESS_GONE if process is not None and not _alive(process) else FOLLOW_NO_FILE
        if path.stat().st_size < offset:
            return FOLLOW_FILE_SHORTER
        return _follow(path, offset, process, stream)
    except StreamClosed:
        return 0


def _await_file(path: Path, process: tuple[Path, str] | None, stream: LineStream) -> bool:
    ends = time.monotonic() + deadlines.FILE_APPEARS_SECONDS
    while True:
        alive = process is None or _alive(process)
        if path.exists():
            return True
        if not alive or time.monotonic() >= ends:
            return False
        stream.heartbeat(deadlines.HEARTBEAT_SECONDS)
        stream.wait(deadlines.FOLLOW_POLL_SECONDS)


def _follow(path: Path, offset: int, process: tuple[Path, str] | None, stream: LineStream) -> int:
    rest = b""
    with path.open("rb") as file:
        file.seek(offset)
        while True:
            # In this order: what a process wrote before it ended is there once it is seen to have ended.
            alive = process is None or _alive(process)
            chunk = file.read(_CHUNK)
            if chunk:
                *whole, rest = (rest + chunk).split(b"\n")
                lines = [line + b"\n" for line in whole]
                last = next((number for number, line in enumerate(lines) if is_final(line)), None)
                stream.write(lines if last is None else lines[: last + 1])
                if last is not None:
                    return 0
            elif not alive:
                return FOLLOW_PROCESS_GONE
            else:
                stream.heartbeat(deadlines.HEARTBEAT_SECONDS)
                stream.wait(deadlines.FOLLOW_POLL_SECONDS)


def is_final(line: bytes) -> bool:
    """Whether nothing follows this line in a run's events."""
    try:
        document = json.loads(line)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("kind") in FINAL_KINDS


def _alive(process: tuple[Path, str]) -> bool:
    return processes.find_named(*process) is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line that the module's docstring shows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m remote_agent.follow", description="Print a file as it grows.")
    parser.add_argument("path", type=processes.absolute_path)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--process-folder", type=processes.absolute_path)
    parser.add_argument("--process-name")
    parser.add_argument("--once", action="store_true", help="end when what is there is printed")
    parser.add_argument("--most-steps", type=int, help="with --once: of the steps, about so many")
    options = parser.parse_args(arguments)
    if (options.process_folder is None) != (options.process_name is None):
        parser.error("--process-folder and --process-name go together")
    process = None if options.process_folder is None else (options.process_folder, options.process_name)
    try:
        code = (
            once(options.path, options.offset, options.most_steps)
            if options.once
            else follow(options.path, options.offset, process)
        )
    except OSError as error:
        print(f"{options.path}: {error.strerror}", file=sys.stderr)
        return 1
    said = {
        FOLLOW_PROCESS_GONE: f"{options.process_name} has ended without a last event",
        FOLLOW_NO_FILE: f"{options.path} was not created within {deadlines.FILE_APPEARS_SECONDS:.0f} s",
        FOLLOW_FILE_SHORTER: f"{options.path} is shorter than {options.offset} bytes",
    }
    if code in said:
        print(said[code], file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
