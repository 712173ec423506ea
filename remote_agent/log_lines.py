"""The lines of logs: a UTC time, a space, a text; and those of Ray's own logs, which have another form. Pure.

Logs of processes on several machines are merged by these times, so each line of ours begins with one. A line without a
time (a traceback that Ray wrote, what a library in C prints) belongs to the line before it, and has its time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

_RAYS = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ([A-Z]) ")
"""Of Ray's processes in C++: ``[2026-01-31 12:00:00,123 E 17 17] (raylet) file.cc:12: text``, in local time."""

_ERRORS = "EFC"
"""Levels of Ray's lines that are shown: error, fatal and failed check."""


def stamp(seconds: float) -> str:
    """``2026-01-31T12:00:00.123Z`` for seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stamped(lines: Iterable[str], before: float | None, otherwise: float) -> Iterator[tuple[float, str]]:
    """(seconds since the epoch, text) of each line of a log of ours.

    Args:
        lines: without their newlines.
        before: the time of the line before them; None: there is none, and lines at the beginning that have no time have
            that of the first one that has.
        otherwise: theirs, where none has.
    """
    waiting: list[str] = []
    for line in lines:
        begin, _, text = line.partition(" ")
        found = _seconds(begin)
        before, text = (before, line) if found is None else (found, text)
        if before is None:
            waiting.append(line)
            continue
        yield from ((before, earlier) for earlier in waiting)
        waiting.clear()
        yield before, text
    yield from ((otherwise, earlier) for earlier in waiting)


def rays_errors(lines: Iterable[str], before: float | None, otherwise: float) -> Iterator[tuple[float, str]]:
    """As :func:`stamped`, of a log of Ray's: what is an error, with the lines that follow it without a time.

    Lines at the beginning of the file without a time are errors, too: a process that crashes writes such.
    """
    moment, is_error = (otherwise, True) if before is None else (before, False)
    for line in lines:
        found = _RAYS.match(line)
        if found is not None:
            local = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").astimezone()
            moment, is_error = local.timestamp() + int(found[2]) / 1000, found[3] in _ERRORS
        if is_error and line.strip():
            yield moment, line


def _seconds(text: str) -> float | None:
    if not text.endswith("Z"):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
