"""``slices.jsonl``: which samples were counted, by which worker, in every applied step; and what can be read out of it.

One line a step: ``{"step": 7, "slices": [["c", 192, 200], ["b", 200, 224]]}``: worker, and begin and end (exclusive) of
the positions of the run's global order (``order``) that it was counted with. A run that goes on from a checkpoint
writes ``{"resumed_after": 5}`` first: the lines of later steps before it tell of work that the checkpoint does not
hold; they are superseded, and the steps are written again.

Which sample a position holds follows from seed and dataset alone, so the record proves how often each sample was
counted. :func:`gaps_and_overlaps` says whether a position was left out or used twice.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from remote_agent import tail
from remote_agent.training.errors import StorageError
from remote_agent.training.shared.slices import SliceSpan

FILE = "slices.jsonl"
"""The record's name in a run's folder."""


class SliceRecord:
    """Appends the slices of applied steps.

    Args:
        path: the file; one that is there is continued.
        resumed_after: the step that the run goes on after; None: it begins.

    Raises:
        StorageError: the file can't be written.
    """

    def __init__(self, path: Path, resumed_after: int | None = None) -> None:
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
            if path.is_file():
                # What a killed coordinator left half-written is no line.
                with path.open("rb") as file:
                    size = tail.end_of_lines(file)
                self._file.truncate(size)
        except OSError as error:
            raise StorageError.of(path, error) from error
        if resumed_after is not None:
            self.go_back(resumed_after)

    def write(self, step: int, slices: Iterable[SliceSpan]) -> None:
        """Add a step that is applied; raises StorageError."""
        self._append({"step": step, "slices": [[span.worker, span.begin, span.end] for span in slices]})

    def go_back(self, step: int) -> None:
        """Mark the steps after ``step`` as superseded, since the run returns to it; raises StorageError."""
        self._append({"resumed_after": step})

    def flush(self) -> None:
        """Flush what was written to the disk, since a checkpoint's steps must be on record; raises StorageError."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError.of(self._path, error) from error

    def close(self) -> None:
        self._file.close()

    def _append(self, document: dict[str, object]) -> None:
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError("no space left on device")
        except OSError as error:
            raise StorageError.of(self._path, error) from error


# --- Reading ---------------------------------------------------------------------------------------------------------


def read(path: Path, count: int = sys.maxsize) -> dict[int, tuple[SliceSpan, ...]]:
    """The slices of the last ``count`` steps that count, in the order of the steps; superseded lines are left out.

    The file is read from its end, since a whole one of 100,000 steps takes seconds.

    Raises:
        ValueError: a line is not of a record. A last line without its end is passed over: its step was not reported.
    """
    found: dict[int, tuple[SliceSpan, ...]] = {}
    last = math.inf
    with path.open("rb") as file:
        # A step counts where it is reported last, if the run did not go back before it later.
        for _, line in tail.lines_from_end(file):
            step, spans = _parsed(line, path)
            if spans is None:
                last = min(last, step)
            elif step <= last and step not in found:
                found[step] = spans
                if len(found) == count:
                    break
    return dict(sorted(found.items()))


def _parsed(line: bytes, path: Path) -> tuple[int, tuple[SliceSpan, ...] | None]:
    """(step, its slices), or (the step that the run goes on after, None)."""
    try:
        document = json.loads(line)
        if "resumed_after" in document:
            return int(document["resumed_after"]), None
        spans = tuple(SliceSpan(str(worker), int(begin), int(end)) for worker, begin, end in document["slices"])
        return int(document["step"]), spans
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path.name}: {line[:80]!r} is no record of slices: {error}") from None


def gaps_and_overlaps(slices: Sequence[SliceSpan], end: int, begin: int = 0) -> tuple[str, ...]:
    """What is wrong with ``slices`` as a cover of the positions ``begin`` to ``end``, one sentence each."""
    found: list[str] = []
    position = begin
    for span in sorted(slices, key=lambda span: (span.begin, span.end)):
        if span.begin > position:
            found.append(f"positions {position} to {span.begin} were not counted")
        elif span.begin < position:
            again = min(position, span.end)
            found.append(f"positions {span.begin} to {again} were counted again, by {span.worker}")
        position = max(position, span.end)
    if position < end:
        found.append(f"positions {position} to {end} were not counted")
    elif position > end:
        found.append(f"positions {end} to {position} lie beyond the end")
    return tuple(found)
