"""Prints a file's lines from a byte offset on, and new ones as they are written: how a laptop follows a run.

::

    python -m remote_agent.follow PATH --offset N [--process-folder F --process-name NAME] [--most-steps M]

Only complete lines are printed, so the reader's next offset is N plus the bytes of the lines it has. An empty line is a
heartbeat and no part of the file. With ``--most-steps``, of the steps that are there already only about M are printed,
evenly spread, and the last ones; a :class:`~remote_agent.protocol.History` stands before and after what is there. It
ends with 0 after a run's last event, or when the reader goes away, and otherwise with one of the protocol's exit codes
``FOLLOW_...``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from remote_agent import deadlines
from remote_agent.host import processes
from remote_agent.protocol import (
    FINAL_KINDS,
    FOLLOW_FILE_SHORTER,
    FOLLOW_NO_FILE,
    FOLLOW_PROCESS_GONE,
    History,
    ProtocolError,
    Step,
    decode_event,
    decode_numbered,
    encode,
)
from remote_agent.stream import LineStream, StreamClosed
from remote_agent.tail import lines_from_end

LAST_STEPS = 50
"""Steps at the end of a run that are never left out: what the speed and the times of a step are taken from."""

_CHUNK = 1 << 20
_LINES = 1000
_STEP = b'"kind":"step",'
_HEAD = 100
"""Bytes of a line in which its kind stands, after its number and its time."""


def once(path: Path, offset: int, most_steps: int | None = None) -> int:
    """Print the lines that are there now, if the file is; returns the exit code.

    ``most_steps``: of the steps, print about so many, evenly spread, and the last ones; every other event is printed.
    """
    if not path.is_file():
        return 0
    with path.open("rb", _CHUNK) as file, contextlib.suppress(StreamClosed):
        known = None if most_steps is None else _newest(file)
        file.seek(offset)
        stream = LineStream()
        if known is not None and most_steps is not None:
            _write_all(stream, thinned(file, offset, known, most_steps))
        _write_all(stream, (line for line in file if line.endswith(b"\n")))
    return 0


def _write_all(stream: LineStream, lines: Iterator[bytes]) -> None:
    while some := list(islice(lines, _LINES)):
        stream.write(some)


@dataclass(frozen=True)
class _Newest:
    """The end of a run's events: the newest one, and where the last :data:`LAST_STEPS` steps begin."""

    history: History
    last_steps: int


def _newest(file: BinaryIO) -> _Newest | None:
    """How far a file of events has come; None: it has no event yet."""
    history: History | None = None
    steps = offset = 0
    for offset, line in lines_from_end(file):
        if history is None:
            with contextlib.suppress(ProtocolError):
                number, _ = decode_numbered(line.decode(errors="replace"))
                history = History(history=number, step=0, size=offset)
        if history is not None and is_step(line):
            steps += 1
            if steps == 1:
                history = replace(history, step=_step_of(line))
            if steps == LAST_STEPS:
                break
    return None if history is None else _Newest(history, offset)


def _step_of(line: bytes) -> int:
    try:
        event = decode_event(line.decode(errors="replace"))
    except ProtocolError:
        return 0
    return event.step if isinstance(event, Step) else 0


def thinned(file: BinaryIO, offset: int, newest: _Newest, most: int) -> Iterator[bytes]:
    """The lines from ``offset`` to the newest event without most of the steps: about ``most`` and the last ones stay.

    The newest event is not among them: it may be the run's last word, after which nothing more is read.
    """
    every = max(1, -(-newest.history.step // max(1, most)))
    number = -1
    while offset < newest.history.size and (line := file.readline()):
        offset += len(line)
        if line.find(_STEP, 0, _HEAD) < 0:
            yield line
        else:
            number += 1
            if number % every == 0 or offset > newest.last_steps:
                yield line


def is_step(line: bytes) -> bool:
    """Whether this line of a run's events, as :func:`~remote_agent.protocol.encode` writes them, is a step."""
    return line.find(_STEP, 0, _HEAD) >= 0


def follow(path: Path, offset: int, process: tuple[Path, str] | None = None, most_steps: int | None = None) -> int:
    """Print lines until the file is complete; returns the exit code.

    Args:
        path: the file; it may not exist yet.
        offset: bytes to leave out.
        process: the cluster's folder and the name of the process that writes the file, when there is one to watch.
        most_steps: of the steps that are there, print about so many and the last ones; None: all, and no History.
    """
    stream = LineStream()
    try:
        if not _await_file(path, process, stream):
            return FOLLOW_PROCESS_GONE if process is not None and not _alive(process) else FOLLOW_NO_FILE
        if path.stat().st_size < offset:
            return FOLLOW_FILE_SHORTER
        if most_steps is not None:
            offset = _catch_up(path, offset, stream, most_steps)
        return _follow(path, offset, process, stream)
    except StreamClosed:
        return 0


def _catch_up(path: Path, offset: int, stream: LineStream, most_steps: int) -> int:
    """Print what is there already, with few of its steps; returns where what is new begins."""
    with path.open("rb", _CHUNK) as file:
        newest = _newest(file)
        if newest is None or newest.history.size <= offset:
            return offset
        line = encode(newest.history).encode() + b"\n"
        stream.write([line])
        file.seek(offset)
        _write_all(stream, thinned(file, offset, newest, most_steps))
        stream.write([line])
    return newest.history.size


def _patience(process: tuple[Path, str] | None) -> float:
    return deadlines.FILE_APPEARS_SECONDS if process is None else deadlines.PROCESS_BEGINS_SECONDS


def _await_file(path: Path, process: tuple[Path, str] | None, stream: LineStream) -> bool:
    ends = time.monotonic() + _patience(process)
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
    parser.add_argument("--most-steps", type=int, help="of the steps that are there, about so many")
    options = parser.parse_args(arguments)
    if (options.process_folder is None) != (options.process_name is None):
        parser.error("--process-folder and --process-name go together")
    process = None if options.process_folder is None else (options.process_folder, options.process_name)
    try:
        code = (
            once(options.path, options.offset, options.most_steps)
            if options.once
            else follow(options.path, options.offset, process, options.most_steps)
        )
    except OSError as error:
        print(f"{options.path}: {error.strerror}", file=sys.stderr)
        return 1
    said = {
        FOLLOW_PROCESS_GONE: f"{options.process_name} has ended without a last event",
        FOLLOW_NO_FILE: f"{options.path} was not created within {_patience(process):.0f} s",
        FOLLOW_FILE_SHORTER: f"{options.path} is shorter than {options.offset} bytes",
    }
    if code in said:
        print(said[code], file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
